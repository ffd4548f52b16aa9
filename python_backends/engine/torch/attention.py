"""Attention of one layer over the flat batch: decode rows in groups of similar length, prefill chunks span by
span.

Owns no state; the step batch says what to read where. torch's operators attend over gathered blocks; where
kernels of ours run, `paged_attention` does the same straight from the blocks. The query heads that share a KV
head are taken as query positions (decode: one call for all rows and heads) or as heads over a KV head
repeated without copying (prefill). Called by the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.torch.attention_spans import (
    AttentionSpans,
    DecodeGroup,
    LayerAttention,
    PrefillSpan,
    Rotation,
)
from python_backends.engine.torch.operators import place

AttendOperator = Callable[..., Tensor]  # with the arguments of `attend`


def decode_attention(q: Tensor, group: DecodeGroup, layer: LayerAttention, cache: KVCache) -> Tensor:
    """q [rows, heads · dim] of a decode group → the same shape."""
    rows, heads = group.last - group.first, layer.heads
    q = q.view(rows, heads.num_kv_heads, heads.group, heads.head_dim)
    keys, values = cache.gather(layer.index, group.gather, rows)
    out = layer.scores(q, keys, values, attn_mask=group.mask, scale=heads.scale)
    return out.reshape(rows, heads.query_width)


def prefill_attention(qkv: Tensor, span: PrefillSpan, layer: LayerAttention, cache: KVCache) -> Tensor:
    """qkv [rows, (heads + 2 kv_heads) · dim] of one chunk, already
    written to the cache → [rows, heads · dim].
    """
    heads = layer.heads
    q, k, v = torch.split(qkv, [heads.query_width, heads.kv_width, heads.kv_width], dim=1)
    # [kv_heads, group, chunk, dim]
    q = q.view(len(q), heads.num_kv_heads, heads.group, heads.head_dim).permute(1, 2, 0, 3)
    if span.gather is None:
        keys, values = (x.view(len(x), heads.num_kv_heads, heads.head_dim).transpose(0, 1) for x in (k, v))
    else:
        gathered = cache.gather(layer.index, span.gather, 1)
        keys, values = gathered[0][0], gathered[1][0]  # [kv_heads, tokens, dim]
    shape = (heads.num_kv_heads, heads.group, keys.shape[1], heads.head_dim)
    keys, values = keys[:, None].expand(shape), values[:, None].expand(shape)
    out = layer.scores(q, keys, values, attn_mask=span.mask, is_causal=span.mask is None, scale=heads.scale)
    return out.permute(2, 0, 1, 3).reshape(-1, heads.query_width)


def attend(
    qkv: Tensor, rotation: Rotation | None, spans: AttentionSpans, layer: LayerAttention, cache: KVCache
) -> Tensor:
    """The attention [tokens, heads · dim] of all rows of qkv [tokens, (heads + 2 kv_heads) · dim], whose
    queries and keys are rotated in place; keys and values are written to the cache.
    """
    place(qkv, rotation, spans.write, layer.index, cache, layer.heads)
    width = layer.heads.query_width
    outs = [
        decode_attention(qkv[group.first : group.last, :width], group, layer, cache)
        for group in spans.decodes
    ]
    outs += [prefill_attention(qkv[span.first : span.last], span, layer, cache) for span in spans.prefills]
    if spans.num_padding:
        outs.append(qkv[-spans.num_padding :, :width])  # their results are not read
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def attend_operator(kernels: bool) -> AttendOperator:
    """What `attend` does, by torch's operators or by kernels. These take whole tables for a rotation."""
    if kernels:
        from python_backends.engine.torch.paged_attention import attend_paged  # brings Triton's language

        return attend_paged
    return attend


def score_operator(softcap: float | None) -> Callable[..., Tensor]:
    """Attention over given keys and values, as scaled_dot_product_attention is called."""
    return (
        functional.scaled_dot_product_attention
        if softcap is None
        else partial(_capped_attention, softcap=softcap)
    )


def _capped_attention(
    q: Tensor, k: Tensor, v: Tensor, *, softcap: float, scale: float, **mask: Any
) -> Tensor:
    """With scores ← softcap · tanh(scores / softcap), which the fused
    operator does not know; softmax in float32 or better.
    """
    scores = (q @ k.transpose(-1, -2)).mul_(scale / softcap).tanh_().mul_(softcap)
    hidden = mask["attn_mask"]
    if hidden is None:  # causal
        hidden = scores.new_full(scores.shape[-2:], float("-inf")).triu_(1)
    at_least_float32 = torch.promote_types(scores.dtype, torch.float32)
    return scores.add_(hidden).softmax(-1, dtype=at_least_float32).to(v.dtype) @ v
