"""A described model as an OpenVINO graph over one flat batch of tokens, with paged attention over KV blocks.

Owns nothing: written once at the start, compiled and run by the OpenVINO engine. Norms, rotary embedding and
gated products are spelled the way OpenVINO's CPU plugin recognises and fuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from openvino import opset15 as ops
from openvino.op import _PagedAttentionExtension as PagedAttention
from torch import Tensor

from python_backends.engine.model.description import (
    Activation,
    Attention,
    Experts,
    FeedForward,
    Layer,
    Linear,
    Model,
    Norm,
    NormKind,
    Rotary,
)
from python_backends.engine.openvino import BLOCK_TOKENS
from python_backends.settings import SettingsError

TYPES = MappingProxyType({torch.float32: ov.Type.f32, torch.bfloat16: ov.Type.bf16})
STEP_INPUTS = MappingProxyType(
    {
        "tokens": 1,  # [tokens]
        "positions": 1,  # [tokens]
        "past_lens": 1,  # [spans] tokens of the span's sequence that have their KV in blocks
        "subsequence_begins": 1,  # [spans + 1] where each span begins in the flat batch
        "block_indices": 1,  # the blocks of all spans, one after the other
        "block_indices_begins": 1,  # [spans + 1]
        "max_context_len": 0,
        "sampling_rows": 1,  # [sampled] rows of the flat batch whose logits are wanted
    }
)  # int32 inputs and their ranks

Node = Any  # OpenVINO's nodes and outputs, which take each other's place


def cache_name(layer: int, part: str) -> str:
    """Of the input that holds the keys or values of a layer: [blocks, kv_heads, block_tokens, dim]."""
    return f"{part}.{layer}"


class Graph:
    """The hidden state is [tokens, 1, hidden] throughout: the form in
    which the plugin knows rotary embedding.
    """

    def __init__(self, model: Model, num_positions: int, state_layer: int = 0) -> None:
        """`state_layer`: after so many layers hidden states are given; 0: they are not."""
        self.model = model
        self._state_layer = state_layer
        self._states: Node | None = None  # [sampled, 1, hidden]; known after `scores`
        # of query, key and value
        self._widths = [model.heads.query_width, model.heads.kv_width, model.heads.kv_width]
        self._heads = model.heads
        self._cache_type = TYPES[model.embedding.dtype]
        self._parameters: list[Node] = []
        self.inputs = {
            name: self._input(name, [-1] * rank, ov.Type.i32) for name, rank in STEP_INPUTS.items()
        }
        self._rotations = [self._rotation(rotary, num_positions) for rotary in model.rotaries]

    def build(self, layers: Iterable[Layer]) -> ov.Model:
        """From STEP_INPUTS and the caches of all layers to the logits [sampled, vocabulary] and, where they
        are wanted, the hidden states [sampled, hidden], float32.

        Raises SettingsError where OpenVINO can't compute what the model wants.
        """
        scores = _scaled(ops.squeeze(self.scores(layers), integer(1)), self.model.logit_scale)
        logits = _softcapped(scores, self.model.logit_softcap)
        states = [] if self._states is None else [ops.squeeze(self._states, integer(1))]
        return ov.Model([ops.result(each) for each in (logits, *states)], self._parameters, "gapless")

    def scores(self, layers: Iterable[Layer]) -> Node:
        """[sampled, 1, vocabulary], neither scaled nor capped"""
        x = self.embedded()
        layers = iter(layers)
        for index in range(self.model.num_layers):
            if index and index == self._state_layer:
                self._states = self.sampled(x)
            x = self.layer(x, index, next(layers))
        return self.head(self.sampled(x))

    def sampled(self, x: Node) -> Node:
        """[tokens, 1, hidden] → [sampled, 1, hidden]"""
        return ops.gather(x, self.inputs["sampling_rows"], integer(0))

    @cached_property
    def _embedding(self) -> Node:
        return _shared(self.model.embedding)

    @property
    def shared(self) -> Tensor:
        """A constant has its memory: it must live as long as the compiled graph."""
        return self.model.embedding

    def embedded(self) -> Node:
        return ops.unsqueeze(_scaled(self.rows(), self.model.embedding_scale), integer(1))

    def rows(self) -> Node:
        """Of the tokens: [tokens, hidden]."""
        return ops.gather(self._embedding, self.inputs["tokens"], integer(0))

    def layer(self, x: Node, index: int, layer: Layer) -> Node:
        normed = _norm(x, layer.attention_norm)
        attended = _norm(self._attend(normed, index, layer.attention), layer.attention_output_norm)
        if layer.parallel:
            fed = _feed_forward(
                _norm(x, layer.feed_forward_norm) if layer.feed_forward_norm else normed, layer.feed_forward
            )
            return ops.add(x, _scaled(ops.add(attended, fed), layer.residual_scale))
        x = ops.add(x, _scaled(attended, layer.residual_scale))
        fed = _norm(
            _feed_forward(_norm(x, layer.feed_forward_norm), layer.feed_forward),
            layer.feed_forward_output_norm,
        )
        return ops.add(x, _scaled(fed, layer.residual_scale))

    def head(self, x: Node) -> Node:
        """[sampled, 1, hidden] → [sampled, 1, vocabulary]"""
        model = self.model
        return _linear(_norm(x, model.norm), model.head, self._embedding if model.is_tied else None)

    def _attended(self, parts: list[Node], index: int, attention: Attention) -> Node:
        """Of query, key and value [tokens, 1, width] → [tokens, 1, heads · dim]."""
        if attention.softcap is not None:
            raise SettingsError(
                "attention with soft-capped scores is not computed by the openvino engine; engine.kind ="
                " 'torch' does"
            )
        heads = self._heads
        query, key, value = parts
        query = self._turned(query, heads.num_query_heads, attention.q_norm, attention.rotary)
        key = self._turned(key, heads.num_kv_heads, attention.k_norm, attention.rotary)
        flat = [
            _reshaped(part, [-1, width])
            for part, width in zip((query, key, value), self._widths, strict=True)
        ]
        attended = self._paged_attention(flat, self.caches(index), attention.window or 0)
        return _reshaped(attended, [-1, 1, heads.query_width])

    def caches(self, index: int) -> list[Node]:
        """The keys and values of a layer, as inputs."""
        shape = [-1, self._heads.num_kv_heads, BLOCK_TOKENS, self._heads.head_dim]
        return [self._input(cache_name(index, part), shape, self._cache_type) for part in ("key", "value")]

    def _attend(self, x: Node, index: int, attention: Attention) -> Node:
        parts = _products(x, attention.qkv, self._widths)
        return _linear(self._attended(parts, index, attention), attention.output)

    def _turned(self, part: Node, num_heads: int, norm: Norm | None, rotary: int | None) -> Node:
        """Normed and turned queries or keys [tokens, 1, heads · dim]."""
        dim = self._heads.head_dim
        if norm is not None and len(norm.weight) != dim:
            part, norm = _norm(part, norm), None
        x = _norm(_reshaped(part, [-1, 1, num_heads, dim]), norm)
        if rotary is None:
            return x
        x = ops.transpose(x, _ints(0, 2, 1, 3))
        cos, sin = self._rotations[rotary]
        first, second = (
            ops.slice(x, _ints(begin), _ints(end), _ints(1), _ints(3))
            for begin, end in ((0, dim // 2), (dim // 2, dim))
        )
        rolled = ops.concat([ops.multiply(second, _float(-1.0)), first], -1)
        return ops.transpose(ops.add(ops.multiply(x, cos), ops.multiply(rolled, sin)), _ints(0, 2, 1, 3))

    def _rotation(self, rotary: Rotary, num_positions: int) -> list[Node]:
        """cos and sin [tokens, 1, 1, dim]."""
        tables = [floats(torch.cat((table, table), 1)) for table in rotary.tables(num_positions)]
        rows = [ops.gather(table, self.inputs["positions"], integer(0)) for table in tables]
        return [_reshaped(row, [-1, 1, 1, self._heads.head_dim]) for row in rows]

    def _paged_attention(self, parts: list[Node], caches: list[Node], window: int) -> Node:
        """[tokens, heads · dim]. What follows the context length are features that are left off: score
        output, cache rotation, sparse attention, sinks, cache eviction, token types, biases.
        """
        i32, f32 = np.zeros(0, np.int32), np.zeros(0, np.float32)
        names = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
        lengths = [self.inputs[name] for name in names]
        scale = [_float(self._heads.scale), integer(window), f32, self.inputs["max_context_len"]]
        left_off = [
            i32,
            i32,
            i32,
            f32,
            f32,
            integer(0),
            integer(0),
            f32,
            integer(0),
            i32,
            i32,
            i32,
            i32,
            np.zeros(0, np.uint8),
            i32,
        ]
        node = PagedAttention([output(value) for value in [*parts, *caches, *lengths, *scale, *left_off]])
        info = node.get_rt_info()
        info["k_head_size"] = info["v_head_size"] = self._heads.head_dim
        info["num_k_heads"] = info["num_v_heads"] = self._heads.num_kv_heads
        return node.output(0)

    def _input(self, name: str, shape: list[int], kind: ov.Type) -> Node:
        parameter = ops.parameter(shape, kind, name=name)
        parameter.output(0).get_tensor().set_names({name})
        self._parameters.append(parameter)
        return parameter


def _feed_forward(x: Node, feed_forward: FeedForward | Experts) -> Node:
    if isinstance(feed_forward, Experts):
        raise SettingsError(
            "mixtures of experts are not computed by the openvino engine; engine.kind = 'torch' does"
        )
    activation = ACTIVATIONS[feed_forward.activation]
    if not feed_forward.gated:
        return _linear(activation(_linear(x, feed_forward.up)), feed_forward.down)
    width = len(feed_forward.up.weight) // 2
    gate, up = _products(x, feed_forward.up, [width, width])
    return _linear(ops.multiply(activation(gate), up), feed_forward.down)


def _products(x: Node, linear: Linear, widths: list[int]) -> list[Node]:
    """The products that `linear` joins, each by itself: so the plugin makes what
    follows a part of it, and nothing is cut apart.
    """
    parts = (linear.weight, linear.bias, linear.scale)
    cut = [[None] * len(widths) if part is None else torch.split(part, widths) for part in parts]
    return [_linear(x, Linear(weight, bias, scale)) for weight, bias, scale in zip(*cut, strict=True)]


def _linear(x: Node, linear: Linear, weight: Node | None = None) -> Node:
    y = ops.matmul(x, weight or _scaled_weight(linear), False, True)
    return y if linear.bias is None else ops.add(y, floats(linear.bias))


def _norm(x: Node, norm: Norm | None) -> Node:
    if norm is None:
        return x
    axes = _ints(-1)
    if norm.kind == NormKind.LAYER:
        y = ops.multiply(ops.mvn(x, axes, True, norm.eps, "inside_sqrt"), floats(norm.weight))
        return y if norm.bias is None else ops.add(y, floats(norm.bias))
    mean_square = ops.reduce_mean(ops.power(x, _float(2.0)), axes, keep_dims=True)
    factor = ops.divide(_float(1.0), ops.sqrt(ops.add(mean_square, _float(norm.eps))))
    return ops.multiply(floats(norm.weight), ops.multiply(x, factor))


def _scaled(x: Node, scale: float) -> Node:
    return x if scale == 1 else ops.multiply(x, _float(scale))


def _softcapped(x: Node, softcap: float | None) -> Node:
    return (
        x
        if softcap is None
        else ops.multiply(ops.tanh(ops.multiply(x, _float(1 / softcap))), _float(softcap))
    )


ACTIVATIONS: Mapping[Activation, Callable[[Node], Node]] = MappingProxyType(
    {
        Activation.SILU: ops.swish,
        Activation.GELU: lambda x: ops.gelu(x, "erf"),
        Activation.GELU_TANH: lambda x: ops.gelu(x, "tanh"),
        Activation.RELU: ops.relu,
        Activation.RELU_SQUARED: lambda x: ops.power(ops.relu(x), _float(2.0)),
    }
)


def _scaled_weight(linear: Linear) -> Node:
    """int8 is multiplied inside the product by the plugin, which keeps it as it is."""
    if linear.scale is None:
        return _weight(linear.weight)
    return ops.multiply(
        ops.convert(ops.constant(linear.weight.numpy()), "f32"), floats(linear.scale[:, None])
    )


def _weight(weight: Tensor) -> Node:
    """A constant in the weight's own type, which the plugin keeps; float32 in the eyes of the graph."""
    if weight.dtype == torch.float32:
        return floats(weight)
    bits = weight.contiguous().view(torch.int16).numpy()
    copied = ov.Tensor(TYPES[weight.dtype], list(weight.shape))
    copied.data.view(np.int16)[...] = bits
    return ops.convert(ov.op.Constant(copied), "f32")


def _shared(weight: Tensor) -> Node:
    """As `_weight`, without a copy: the tensor must live as long as the compiled graph."""
    if weight.dtype == torch.float32:
        return floats(weight)
    bits = weight.view(torch.int16).numpy()
    return ops.convert(ov.op.Constant(ov.Tensor(bits, list(weight.shape), TYPES[weight.dtype])), "f32")


def floats(values: Tensor) -> Node:
    """The constant has the memory of `values` where these are float32, and keeps it."""
    return ops.constant(values.float().contiguous().numpy(), shared_memory=True)


def _reshaped(x: Node, shape: list[int]) -> Node:
    return ops.reshape(x, _ints(*shape), False)


def _float(value: float) -> Node:
    return ops.constant(np.float32(value))


def integer(value: int) -> Node:
    return ops.constant(np.int32(value))


def _ints(*values: int) -> Node:
    return ops.constant(np.array(values, np.int64))


def output(value: Node | NDArray[np.generic]) -> Node:
    node = ops.constant(value) if isinstance(value, np.ndarray) else value
    return node if isinstance(node, ov.Output) else node.output(0)
