"""The operators for the parts of a description: chosen once, when a decoder is built, so that a step takes no
decisions.

They are torch's; where they are to be `fused`, the operators between two products are one kernel
(`fused_kernels`). Called by the decoder and its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.model.description import (
    Activation,
    Attention,
    Experts,
    FeedForward,
    Heads,
    Norm,
    NormKind,
)
from python_backends.engine.torch.attention_spans import Rotation

Operator = Callable[[Tensor], Tensor]


def unchanged(x: Tensor) -> Tensor:
    return x


def norm_operator(norm: Norm | None, dtype: torch.dtype) -> Operator:
    """[..., width] → the same shape, for x of `dtype`."""
    if norm is None:
        return unchanged
    shape = (len(norm.weight),)
    if norm.kind == NormKind.LAYER:
        operator: Operator = partial(
            functional.layer_norm, normalized_shape=shape, weight=norm.weight, bias=norm.bias, eps=norm.eps
        )
    else:
        operator = partial(functional.rms_norm, normalized_shape=shape, weight=norm.weight, eps=norm.eps)
    if norm.weight.dtype == dtype:
        return operator
    return lambda x: operator(x.float()).to(dtype)


class ResidualNorm:
    """The norm of the residual stream x [tokens, width] of `dtype`, as
    it is or after something was added to it.
    """

    def __init__(self, norm: Norm | None, dtype: torch.dtype, fused: bool) -> None:
        self.of = norm_operator(norm, dtype)
        # of x, y and a scale, after scale · y was added to x
        self._of_sum: Callable[[Tensor, Tensor, float], Tensor] = self._sum
        if fused and norm is not None:
            from python_backends.engine.torch.fused_kernels import add_and_norm  # brings Triton's language

            self._of_sum = partial(add_and_norm, norm=norm)

    def after(self, x: Tensor, added: Tensor | None, scale: float) -> Tensor:
        """The norm of x, to which scale · added [tokens, width] is added in place; None: nothing."""
        return self.of(x) if added is None else self._of_sum(x, added, scale)

    def _sum(self, x: Tensor, y: Tensor, scale: float) -> Tensor:
        return self.of(x.add_(y, alpha=scale))


def place(
    qkv: Tensor, rotation: Rotation | None, rows: Tensor, layer: int, cache: KVCache, heads: Heads
) -> None:
    """Rotates queries and keys of qkv [tokens, (heads + 2 kv_heads) · dim], and
    writes keys and values to their `rows` of the cache.
    """
    if rotation is not None:
        rotate(qkv[:, : heads.query_width + heads.kv_width].view(len(qkv), -1, heads.head_dim), *rotation)
    cache.write(layer, rows, qkv[:, heads.query_width :].view(len(qkv), 2, -1, heads.head_dim))


def rotate(qk: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary embedding in place: qk [tokens, heads, dim]; cos, sin
    [tokens, 1, dim], the first half of sin negated.
    """
    rolled = qk.roll(qk.shape[-1] // 2, -1)
    qk.mul_(cos).addcmul_(rolled, sin)


def activation_operator(feed_forward: FeedForward | Experts, fused: bool) -> Operator:
    """Between its two products."""
    if isinstance(feed_forward, Experts) or feed_forward.gated:
        return gate_operator(feed_forward.activation, fused)
    return ACTIVATIONS[feed_forward.activation]


def gate_operator(activation: Activation, fused: bool) -> Operator:
    """[tokens, 2 · width], gates first → activation(gate) · up [tokens, width]."""
    if fused:
        from python_backends.engine.torch.fused_kernels import gated  # brings Triton's language

        return partial(gated, activation=activation)
    operator = ACTIVATIONS[activation]

    def gate(x: Tensor) -> Tensor:
        gates, up = x.chunk(2, dim=-1)
        return operator(gates).mul_(up)

    return gate


def head_norm_operator(attention: Attention, heads: Heads, dtype: torch.dtype) -> Callable[[Tensor], object]:
    """Norms the queries and keys of qkv [tokens, (heads + 2 kv_heads) · dim], in place."""
    if attention.q_norm is None or attention.k_norm is None:
        return unchanged
    if len(attention.q_norm.weight) == len(attention.k_norm.weight) == heads.head_dim:
        return _norm_by_head(attention.q_norm, attention.k_norm, heads)
    parts = (
        (attention.q_norm, 0, heads.query_width),
        (attention.k_norm, heads.query_width, heads.query_width + heads.kv_width),
    )
    operators = [(norm_operator(norm, dtype), first, last) for norm, first, last in parts]

    def norm_all(qkv: Tensor) -> None:
        for operator, first, last in operators:
            qkv[:, first:last] = operator(qkv[:, first:last])

    return norm_all


def _norm_by_head(q_norm: Norm, k_norm: Norm, heads: Heads) -> Callable[[Tensor], object]:
    """All heads at once, each with its own factors."""
    counts = torch.tensor([heads.num_query_heads, heads.num_kv_heads], device=q_norm.weight.device)
    # [heads + kv_heads, dim]
    weight = torch.stack((q_norm.weight, k_norm.weight)).repeat_interleave(counts, 0)
    width, shape, eps = heads.query_width + heads.kv_width, (heads.head_dim,), q_norm.eps

    def norm(qkv: Tensor) -> None:
        qk = qkv[:, :width].view(len(qkv), -1, heads.head_dim)
        torch.mul(functional.rms_norm(qk, shape, None, eps), weight, out=qk)

    return norm


def softcap_operator(softcap: float | None) -> Operator:
    """In place."""
    if softcap is None:
        return unchanged
    return lambda x: x.div_(softcap).tanh_().mul_(softcap)


def scale_operator(scale: float) -> Operator:
    """In place."""
    return unchanged if scale == 1 else lambda x: x.mul_(scale)


def _relu_squared(x: Tensor) -> Tensor:
    return functional.relu(x).square_()


ACTIVATIONS: Mapping[Activation, Operator] = MappingProxyType(
    {
        Activation.SILU: functional.silu,
        Activation.GELU: functional.gelu,
        Activation.GELU_TANH: partial(functional.gelu, approximate="tanh"),
        Activation.RELU: functional.relu,
        Activation.RELU_SQUARED: _relu_squared,
    }
)
