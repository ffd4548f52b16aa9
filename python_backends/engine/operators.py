"""torch's operators for the parts of a description: chosen once, when a decoder is built, so that a step asks no questions.

Called by the decoder and its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.description import Activation, Attention, Heads, Norm, NormKind

Operator = Callable[[Tensor], Tensor]


def unchanged(x: Tensor) -> Tensor:
    return x


def norm_operator(norm: Norm | None, dtype: torch.dtype) -> Operator:
    """[..., width] → the same shape, for x of `dtype`."""
    if norm is None:
        return unchanged
    shape = (len(norm.weight),)
    if norm.kind == NormKind.LAYER:
        operator: Operator = partial(functional.layer_norm, normalized_shape=shape, weight=norm.weight, bias=norm.bias, eps=norm.eps)
    else:
        operator = partial(functional.rms_norm, normalized_shape=shape, weight=norm.weight, eps=norm.eps)
    if norm.weight.dtype == dtype:
        return operator
    return lambda x: operator(x.float()).to(dtype)


def head_norm_operator(attention: Attention, heads: Heads, dtype: torch.dtype) -> Callable[[Tensor], object]:
    """Norms the queries and keys of qkv [tokens, (heads + 2 kv_heads) · dim], in place."""
    if attention.q_norm is None or attention.k_norm is None:
        return unchanged
    if len(attention.q_norm.weight) == len(attention.k_norm.weight) == heads.head_dim:
        return _norm_by_head(attention.q_norm, attention.k_norm, heads)
    parts = ((attention.q_norm, 0, heads.query_width), (attention.k_norm, heads.query_width, heads.query_width + heads.kv_width))
    operators = [(norm_operator(norm, dtype), first, last) for norm, first, last in parts]

    def norm_all(qkv: Tensor) -> None:
        for operator, first, last in operators:
            qkv[:, first:last] = operator(qkv[:, first:last])

    return norm_all


def _norm_by_head(q_norm: Norm, k_norm: Norm, heads: Heads) -> Callable[[Tensor], object]:
    """All heads at once, each with its own factors."""
    counts = torch.tensor([heads.num_query_heads, heads.num_kv_heads], device=q_norm.weight.device)
    weight = torch.stack((q_norm.weight, k_norm.weight)).repeat_interleave(counts, 0)  # [heads + kv_heads, dim]
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
