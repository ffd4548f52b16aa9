"""A described model as an OpenVINO graph in which all that lies between two attentions is one operation of
ours.

Owns nothing: written once at the start, like the graph that it varies. Layers of another kind than the
operation computes are written as there. Called by the OpenVINO engine.
Tested in tests/cpu/test_fused_layer.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import openvino as ov
import torch
from openvino import opset15 as ops
from openvino.utils.node_factory import NodeFactory
from torch import Tensor

from python_backends.engine.model.description import Activation, Layer, Linear, Model, Norm, NormKind
from python_backends.engine.openvino.graph import Graph, Node, floats, output

TILE, PANEL = 16, 32  # outputs of a weight that lie together: fused_layer.cpp

Parts = dict[str, Node]  # of the operation, by the names that it knows


class FusedGraph(Graph):
    def __init__(self, model: Model, num_positions: int, operation: FusedOperation) -> None:
        super().__init__(model, num_positions)
        self._operation = operation

    def layers(self, x: Node, layers: Iterable[Layer]) -> Node:
        # query, key and value of the layer that comes, where they are computed already
        parts: list[Node] = []
        for index, (layer, following) in enumerate(_with_following(layers)):
            if not self._fits(layer):
                x, parts = self.layer(x, index, layer), []
                continue
            parts = parts or self._operation.before(x, layer, self.widths)
            attended = self.attended([ops.convert(part, "f32") for part in parts], index, layer.attention)
            leads_on = following is not None and self._fits(following)
            x, *parts = self._operation.between(
                x, layer, attended, following if leads_on else None, self.widths
            )
        return x

    def head(self, x: Node) -> Node:
        norm, head = self.model.norm, self.model.head
        return (
            self._operation.logits(x, norm, head) if _is_rms(norm) and _is_packable(head) else super().head(x)
        )

    def _fits(self, layer: Layer) -> bool:
        return fits(layer) and all(width % PANEL == 0 for width in self.widths)


class FusedOperation:
    """Makes nodes of it. x is [tokens, 1, hidden] of float32, queries, keys
    and values [tokens, 1, width] of bfloat16.
    """

    def __init__(self, library: Path) -> None:
        self._operations = NodeFactory()
        self._operations.add_extension(str(library))

    def before(self, x: Node, layer: Layer, widths: list[int]) -> list[Node]:
        """Query, key and value of a layer."""
        return self._node(x, _attention(layer), widths)

    def between(
        self, x: Node, layer: Layer, attended: Node, following: Layer | None, widths: list[int]
    ) -> list[Node]:
        """x as `layer` leaves it after `attended` [tokens, 1, heads · dim], then
        query, key and value of the layer that follows.
        """
        after = {"attended": ops.convert(attended, "bf16")} | _after_attention(layer)
        return (
            self._node(x, after, [])
            if following is None
            else self._node(x, after | _attention(following), widths)
        )

    def logits(self, x: Node, norm: Norm, head: Linear) -> Node:
        """[tokens, 1, vocabulary] float32."""
        return self._node(x, _next(norm, head), [len(head.weight)], logits=True)[0]

    def _node(self, x: Node, parts: Parts, widths: list[int], *, logits: bool = False) -> list[Node]:
        attributes = {"parts": list(parts), "widths": widths, "logits": logits}
        node = self._operations.create(
            "FusedLayer", [output(part) for part in (x, *parts.values())], attributes
        )
        return list(node.outputs())


def fits(layer: Layer) -> bool:
    """Whether the operation computes such layers."""
    attention, feed_forward = layer.attention, layer.feed_forward
    return (
        layer.residual_scale == 1
        and not layer.parallel
        and layer.attention_output_norm is None
        and layer.feed_forward_output_norm is None
        and feed_forward.gated
        and feed_forward.activation == Activation.SILU
        and all(map(_is_rms, (layer.attention_norm, layer.feed_forward_norm)))
        and all(map(_is_packable, (attention.qkv, attention.output, feed_forward.up, feed_forward.down)))
    )


def _is_rms(norm: Norm | None) -> bool:
    return norm is not None and norm.kind == NormKind.RMS and norm.bias is None


def _is_packable(linear: Linear) -> bool:
    return linear.weight.dtype == torch.bfloat16 and all(size % PANEL == 0 for size in linear.weight.shape)


def _after_attention(layer: Layer) -> Parts:
    """What follows a layer's attention."""
    up = layer.feed_forward.up
    gates_and_ups = Linear(_in_turn(up.weight), None if up.bias is None else _in_turn(up.bias))
    end_of_attention = _packed("output", layer.attention.output)
    feed_forward = (
        _norm("norm", layer.feed_forward_norm)
        | _packed("up", gates_and_ups)
        | _packed("down", layer.feed_forward.down)
    )
    return end_of_attention | feed_forward


def _attention(layer: Layer) -> Parts:
    """What leads to a layer's attention."""
    return _next(layer.attention_norm, layer.attention.qkv)


def _next(norm: Norm | None, linear: Linear) -> Parts:
    return _norm("next_norm", norm) | _packed("next", linear)


def _norm(name: str, norm: Norm | None) -> Parts:
    assert norm is not None, "asked of fits"
    return {name: floats(norm.weight), f"{name}_eps": floats(torch.tensor([norm.eps]))}


def _packed(name: str, linear: Linear) -> Parts:
    """The weight [out, in] as [panels, in / 32, 2, 16 pairs of inputs, 16
    outputs, 2], flat: tiles as the processor takes them.
    """
    rows, columns = linear.weight.shape
    tiles = linear.weight.reshape(rows // PANEL, 2, TILE, columns // PANEL, TILE, 2).permute(0, 3, 1, 4, 2, 5)
    data = tiles.contiguous().view(-1).view(torch.uint8)  # a memory of torch's: it lies on a multiple of 64
    part = {name: ov.op.Constant(data.numpy(), shared_memory=True)}
    return part if linear.bias is None else part | {f"{name}_bias": floats(linear.bias)}


def _in_turn(gate_and_up: Tensor) -> Tensor:
    """[2 · width, …], gate and then up, as 16 rows of gate and 16 of up in turn."""
    return gate_and_up.reshape(2, -1, TILE, *gate_and_up.shape[1:]).transpose(0, 1).reshape(gate_and_up.shape)


def _with_following(layers: Iterable[Layer]) -> Iterator[tuple[Layer, Layer | None]]:
    before = None
    for layer in layers:
        if before is not None:
            yield before, layer
        before = layer
    if before is not None:
        yield before, None
