"""A described model as an OpenVINO graph in which layers that follow each other are one operation of ours,
with their attention, and at the end the product that gives the logits.

Owns nothing: written once at the start, like the graph that it varies. Layers that the operation does not
compute are written as in that graph. Called by the OpenVINO engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from openvino.utils.node_factory import NodeFactory
from torch import Tensor

from python_backends.engine.model.description import (
    Activation,
    FeedForward,
    Heads,
    Layer,
    Linear,
    Model,
    Norm,
    NormKind,
)
from python_backends.engine.openvino.graph import Graph, Node, floats, output
from python_backends.engine.openvino.tied_embedding import TiedEmbedding
from python_backends.engine.openvino.weight_memory import PANEL, WeightMemory, packed, tiled

# inputs of a step that the operation reads, in its order
READ = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins", "sampling_rows")

Parts = dict[str, Node]  # of the operation, by the names that it knows


class FusedGraph(Graph):
    def __init__(
        self, model: Model, num_positions: int, operation: FusedOperation, state_layer: int = 0
    ) -> None:
        super().__init__(model, num_positions, state_layer)
        self._operation, self._memory = operation, WeightMemory()
        self._tables = [floats(table) for rotary in model.rotaries for table in rotary.tables(num_positions)]
        self._tied: TiedEmbedding | None = None
        if model.is_tied and _is_rms(model.norm) and model.head.bias is None and _is_packable(model.head):
            self._tied = TiedEmbedding(model.embedding, self._memory)
            self.model = _with_embedding(model, torch.empty(0))  # else it would be there twice

    @property
    def shared(self) -> Tensor:
        return super().shared if self._tied is None else self._tied.packed

    def rows(self) -> Node:
        return super().rows() if self._tied is None else self._tied.rows(self.inputs["tokens"])

    def scores(self, layers: Iterable[Layer]) -> Node:
        x, run = self.embedded(), self._no_layers()
        self.wants_padding = False
        layers = iter(layers)
        for index in range(self.model.num_layers):
            layer = next(layers)
            if index and index == self._state_layer:
                if run.num_layers:
                    run.give_states()
                else:
                    self._states = self.sampled(x)
            if fits(layer, self.model.heads):
                run.add(layer, self.caches(index))
            else:
                self.wants_padding = True
                x = self.layer(self._after(x, run), index, layer)
                run = self._no_layers()
            del layer  # before the next one is read
        norm, head, tied = self.model.norm, self.model.head, self._tied
        if run.num_layers and (tied is not None or (_is_rms(norm) and _is_packable(head))):
            return self._kept(*self._operation.scores(x, run, norm, head, tied))
        self.wants_padding = True
        if self._tied is not None:
            self.model = _with_embedding(self.model, self._tied.unpacked())
        return self.head(self.sampled(self._after(x, run)))

    def _after(self, x: Node, run: FusedLayers) -> Node:
        """x as the layers of `run` leave it."""
        return self._kept(*self._operation.after(x, run)) if run.num_layers else x

    def _kept(self, first: Node, states: Node | None = None) -> Node:
        """`first`; hidden states are kept where the operation gives them."""
        self._states = self._states if states is None else states
        return first

    def _no_layers(self) -> FusedLayers:
        inputs = [self.inputs[name] for name in READ]
        return FusedLayers(self.model.heads, inputs, self._tables, self._memory)


class FusedLayers:
    """Layers that follow each other, packed for the operation."""

    def __init__(self, heads: Heads, inputs: list[Node], tables: list[Node], memory: WeightMemory) -> None:
        """`inputs` as READ names them; `tables` are cos and sin of each rotary embedding, in turn. The packed
        weights lie in `memory`.
        """
        self.inputs, self.memory = inputs, memory
        self.parts: Parts = {}
        self.attributes: dict[str, Any] = {
            "heads": [heads.num_query_heads, heads.num_kv_heads, heads.head_dim],
            "scale": heads.scale,
            "windows": [],
            "rotaries": [],
            "gelus": [],
            "residual_scales": [],
            "state_layer": 0,  # of these layers; 0: no hidden states are given
        }
        for index, table in enumerate(tables):
            self.parts[f"{('cos', 'sin')[index % 2]}.{index // 2}"] = table

    @property
    def num_layers(self) -> int:
        return len(self.attributes["windows"])

    def give_states(self) -> None:
        """Hidden states of the sampled rows are given as the layers so far leave them."""
        self.attributes["state_layer"] = self.num_layers

    def add(self, layer: Layer, caches: list[Node]) -> None:
        attention, feed_forward, memory = layer.attention, layer.feed_forward, self.memory
        assert isinstance(feed_forward, FeedForward)
        parts = (
            dict(zip(("keys", "values"), caches, strict=True))
            | _norm("attention_norm", layer.attention_norm)
            | _packed("qkv", attention.qkv, memory)
            | _norm("q_norm", attention.q_norm)
            | _norm("k_norm", attention.k_norm)
            | _packed("output", attention.output, memory)
            | _norm("output_norm", layer.attention_output_norm)
            | _norm("feed_forward_norm", layer.feed_forward_norm)
            | _packed("up", feed_forward.up, memory, gated=True)
            | _packed("down", feed_forward.down, memory)
            | _norm("down_norm", layer.feed_forward_output_norm)
        )
        self.parts |= {f"{self.num_layers}.{name}": part for name, part in parts.items()}
        self.attributes["windows"].append(attention.window or 0)
        self.attributes["rotaries"].append(-1 if attention.rotary is None else attention.rotary)
        self.attributes["gelus"].append(int(feed_forward.activation == Activation.GELU_TANH))
        self.attributes["residual_scales"].append(float(layer.residual_scale))


class FusedOperation:
    """Makes nodes of it. x is [tokens, 1, hidden] of float32. Each gives its result, and hidden states
    [sampled, 1, hidden] where the layers are to give them.
    """

    def __init__(self, library: Path) -> None:
        self._operations = NodeFactory()
        self._operations.add_extension(str(library))

    def after(self, x: Node, layers: FusedLayers) -> list[Node]:
        """x as the layers, one at least, leave it."""
        return self._outputs(x, layers, {}, output(x).get_partial_shape()[2].get_length())

    def scores(
        self, x: Node, layers: FusedLayers, norm: Norm, head: Linear, tied: TiedEmbedding | None = None
    ) -> list[Node]:
        """[sampled, 1, vocabulary] float32, by `head` or, where there is one, by `tied`."""
        if tied is None:
            packed_head, vocab_size = _packed("head", head, layers.memory), len(head.weight)
        else:
            packed_head, vocab_size = _bytes("head", tied.packed), tied.vocab_size
        return self._outputs(x, layers, _norm("norm", norm) | packed_head, vocab_size)

    def _outputs(self, x: Node, layers: FusedLayers, more: Parts, width: int) -> list[Node]:
        """The first is [rows, 1, width]."""
        parts = layers.parts | more
        attributes = layers.attributes | {"names": list(parts), "width": width}
        inputs = [output(part) for part in (x, *layers.inputs, *parts.values())]
        outputs: list[Node] = self._operations.create("FusedLayers", inputs, attributes).outputs()
        return outputs


def _with_embedding(model: Model, embedding: Tensor) -> Model:
    """A tied one."""
    return replace(model, embedding=embedding, head=replace(model.head, weight=embedding))


def fits(layer: Layer, heads: Heads) -> bool:
    """Whether the operation computes such layers."""
    attention, feed_forward = layer.attention, layer.feed_forward
    head_norms = [norm for norm in (attention.q_norm, attention.k_norm) if norm is not None]
    norms = (
        layer.attention_norm,
        layer.attention_output_norm,
        layer.feed_forward_norm,
        layer.feed_forward_output_norm,
    )
    return (
        not layer.parallel
        and isinstance(feed_forward, FeedForward)
        and heads.group <= PANEL
        and heads.head_dim % 2 == 0
        and attention.softcap is None
        and all(_is_rms(norm) and len(norm.weight) == heads.head_dim for norm in head_norms)
        and feed_forward.gated
        and feed_forward.activation in (Activation.SILU, Activation.GELU_TANH)
        and all(norm is None or _is_rms(norm) for norm in norms)
        and all(map(_is_packable, (attention.qkv, attention.output, feed_forward.up, feed_forward.down)))
    )


def _is_rms(norm: Norm | None) -> bool:
    return norm is not None and norm.kind == NormKind.RMS and norm.bias is None


def _is_packable(linear: Linear) -> bool:
    return linear.weight.dtype == torch.bfloat16 and all(size % PANEL == 0 for size in linear.weight.shape)


def _norm(name: str, norm: Norm | None) -> Parts:
    """The factors [width], and then the eps."""
    return {} if norm is None else {name: floats(torch.cat([norm.weight.float(), torch.tensor([norm.eps])]))}


def _packed(name: str, linear: Linear, memory: WeightMemory, gated: bool = False) -> Parts:
    """`gated`: rows of gate and then of up."""
    part = _bytes(name, packed(linear.weight, memory, gated))
    if linear.bias is None:
        return part
    return part | {f"{name}_bias": floats(tiled(linear.bias, gated).flatten())}


def _bytes(name: str, weight: Tensor) -> Parts:
    """The constant has the weight's memory, and keeps it."""
    data = weight.view(-1).view(torch.uint8).numpy()
    return {name: ov.op.Constant(data, shared_memory=True)}
