"""What stands between the products of a layer, out of place, so that torch can differentiate it.

The decoder's own operators change their input or are not differentiable; tests compare the two. Called by the
backward pass of a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.model.description import Activation, Attention, FeedForward, Heads, Layer
from python_backends.engine.torch.attention_spans import Rotation
from python_backends.engine.torch.operators import ACTIVATIONS, Operator, norm_operator, unchanged
from python_backends.nouns.training import LayerFacts

Pullback = Callable[[Tensor], tuple[Tensor, ...]]  # d(loss)/dy → d(loss)/dx of each input


def vjp(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Pullback]:
    """The value of `function`, and what brings a gradient of it back to the inputs."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    with torch.enable_grad():
        value = function(*leaves)
    return value.detach(), lambda gradient: torch.autograd.grad(value, leaves, gradient)


class SmallOperators:
    """Those of one layer, for values of `dtype`."""

    def __init__(self, layer: Layer, heads: Heads, dtype: torch.dtype) -> None:
        attention, feed_forward = layer.attention, layer.feed_forward
        assert isinstance(feed_forward, FeedForward), "a mixture of experts is not trained"
        self.heads = heads
        self.norm = norm_operator(layer.attention_norm, dtype)
        self.attended_norm = norm_operator(layer.attention_output_norm, dtype)
        self.feed_forward_norm = norm_operator(layer.feed_forward_norm, dtype)
        self.fed_norm = norm_operator(layer.feed_forward_output_norm, dtype)
        self.gate = gate(feed_forward)
        self.norm_heads = _head_norm(attention, heads, dtype)
        self.rotary, self.window = attention.rotary, attention.window
        self.residual_scale = layer.residual_scale
        self.shares_norm = layer.parallel and layer.feed_forward_norm is None
        self.facts = _facts(layer, feed_forward, heads)
        self._softcap = attention.softcap

    def place(self, qk: Tensor, rotation: Rotation | None) -> Tensor:
        """Norms and rotates queries and keys [tokens, (heads + kv_heads) · dim]."""
        by_head = self.norm_heads(qk).view(len(qk), -1, self.heads.head_dim)
        if rotation is not None:
            cos, sin = rotation
            by_head = by_head * cos + by_head.roll(self.heads.head_dim // 2, -1) * sin
        return by_head.reshape(qk.shape)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """q [rows, heads · dim], keys and values [kv_heads, tokens, dim], mask [rows, tokens] 0 or −inf →
        [rows, heads · dim].
        """
        heads = self.heads
        q = q.view(len(q), heads.num_kv_heads, heads.group, heads.head_dim).permute(1, 2, 0, 3)
        shape = (heads.num_kv_heads, heads.group, keys.shape[1], heads.head_dim)
        keys, values = keys[:, None].expand(shape), values[:, None].expand(shape)
        if self._softcap is None:
            out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=heads.scale)
        else:
            scores = softcapped((q @ keys.transpose(-1, -2)) * heads.scale, self._softcap) + mask
            at_least_float32 = torch.promote_types(scores.dtype, torch.float32)
            out = scores.softmax(-1, dtype=at_least_float32).to(values.dtype) @ values
        return out.permute(2, 0, 1, 3).reshape(out.shape[2], -1)


def softcapped(x: Tensor, softcap: float | None) -> Tensor:
    return x if softcap is None else (x / softcap).tanh() * softcap


def gate(feed_forward: FeedForward) -> Operator:
    """Of what the product `up` gave."""
    if feed_forward.activation == Activation.RELU_SQUARED:
        operator: Operator = _relu_squared
    else:
        operator = ACTIVATIONS[feed_forward.activation]
    return _gated(operator) if feed_forward.gated else operator


def _gated(operator: Operator) -> Operator:
    def gated(x: Tensor) -> Tensor:
        gates, up = x.chunk(2, dim=-1)
        return operator(gates) * up

    return gated


def _relu_squared(x: Tensor) -> Tensor:
    return functional.relu(x).square()


def _head_norm(attention: Attention, heads: Heads, dtype: torch.dtype) -> Operator:
    if attention.q_norm is None or attention.k_norm is None:
        return unchanged
    operators = [norm_operator(norm, dtype) for norm in (attention.q_norm, attention.k_norm)]
    widths = [len(attention.q_norm.weight), len(attention.k_norm.weight)]

    def norm(qk: Tensor) -> Tensor:
        parts: Any = qk.split([heads.query_width, heads.kv_width], dim=1)  # type: ignore[no-untyped-call]
        normed = [
            operator(part.reshape(len(part), -1, width)).reshape(part.shape)
            for operator, part, width in zip(operators, parts, widths, strict=True)
        ]
        return torch.cat(normed, 1)

    return norm


def _facts(layer: Layer, feed_forward: FeedForward, heads: Heads) -> LayerFacts:
    return LayerFacts(
        hidden=len(layer.attention.output.weight),
        query=heads.query_width,
        kv=heads.kv_width,
        up=len(feed_forward.up.weight),
        norms_heads=layer.attention.q_norm is not None,
        norms_attended=layer.attention_output_norm is not None,
        norms_fed=layer.feed_forward_output_norm is not None,
        parallel=layer.parallel,
        is_plain_relu=feed_forward.activation == Activation.RELU and not feed_forward.gated,
    )
