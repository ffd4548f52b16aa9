"""Attention that reads KV blocks directly, as kernels in the Triton language: no block is gathered.

All decode rows take one kernel. A program computes one part of the tokens that a row sees (`paged_parts`),
for the query heads that share a KV head: it rotates them, and the last part of a row also rotates the new key
and writes it and the new value to the cache. Where a row has several parts, the program that is done last
puts them together by their maxima and sums, in the order of the parts: results do not depend on who was last.
Lengths are read on the device, so a captured graph holds for all of them. The chunks of a step take two
kernels, however many they are: one that rotates and writes to the cache (`place`), and one that attends
(`paged_chunks`). Owns nothing; imported only where it runs (see `kernel_trial`), and called
by the decoder.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.torch.attention_spans import (
    LayerAttention,
    PagedSpans,
    Parts,
    Rotation,
)
from python_backends.engine.torch.fused_kernels import place
from python_backends.engine.torch.paged_chunks import LEAST_ROWS, attend_chunks, capped, tile_tokens


def attend_paged(
    qkv: Tensor, rotation: Rotation | None, spans: PagedSpans, layer: LayerAttention, cache: KVCache
) -> Tensor:
    """As `attend`: [tokens, heads · dim] for qkv [tokens, (heads + 2 kv_heads) · dim]. `rotation`: the tables
    [positions, dim]; of rows of padding nothing is computed.
    """
    out = torch.empty((len(qkv), layer.heads.query_width), dtype=qkv.dtype, device=qkv.device)
    blocks = cache.blocks[:, layer.index]
    if spans.tiles is not None:
        place(qkv, rotation, spans, blocks, layer.heads)
    if spans.parts is not None:
        _decodes(qkv, rotation, spans, spans.parts, layer, blocks, out)
    if spans.tiles is not None:
        attend_chunks(qkv, spans, spans.tiles, layer, blocks, out)
    return out


def _decodes(  # noqa: PLR0913
    qkv: Tensor,
    rotation: Rotation | None,
    spans: PagedSpans,
    parts: Parts,
    layer: LayerAttention,
    blocks: Tensor,
    out: Tensor,
) -> None:
    heads, (cos, sin) = layer.heads, rotation or (qkv, qkv)
    _attend_part[(len(parts.items), heads.num_kv_heads)](
        qkv,
        blocks,
        spans.table,
        spans.slots,
        spans.positions,
        cos,
        sin,
        parts.items,
        parts.weighted,
        parts.maxima,
        parts.sums,
        parts.arrived,
        out,
        qkv.stride(0),
        spans.table.stride(0),
        blocks.stride(0),
        blocks.stride(1),
        heads.scale,
        layer.softcap or 0.0,
        GROUP=heads.group,
        ROWS=triton.next_power_of_2(max(heads.group, LEAST_ROWS)),
        DIM=heads.head_dim,
        PADDED=triton.next_power_of_2(max(heads.head_dim, LEAST_ROWS)),
        BLOCK_TOKENS=blocks.shape[3],
        TILE=tile_tokens(qkv.dtype, decodes=True),
        TURNS=rotation is not None,
        HAS_SOFTCAP=layer.softcap is not None,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _attend_part(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0915
    qkv,
    blocks,
    table,
    slots,
    positions,
    cos,
    sin,
    items,
    weighted_parts,
    maxima,
    sums,
    arrived,
    out,
    qkv_stride,
    table_stride,
    block_stride,
    values_offset,
    scale,
    softcap,
    GROUP: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    PADDED: tl.constexpr,  # noqa: N803
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
    TURNS: tl.constexpr,  # noqa: N803
    HAS_SOFTCAP: tl.constexpr,  # noqa: N803
):
    """One part of one row, for one KV head. The new token's key and value are not read from the cache: the
    part that ends with it begins with its score.
    """
    place, kv_head, num_kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    item, num_heads = items + place * 5, num_kv_heads * GROUP
    num_parts = tl.load(item + 4)
    if num_parts == 0:
        return
    row, begin, end, first_part = tl.load(item), tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)
    position, head, dims = (
        tl.load(positions + row),
        kv_head * GROUP + tl.arange(0, ROWS),
        tl.arange(0, PADDED),
    )
    is_head, is_dim = tl.arange(0, ROWS) < GROUP, dims < DIM
    is_query = is_head[:, None] & is_dim[None, :]
    new = qkv + row.to(tl.int64) * qkv_stride
    new_key, turns = new + (num_heads + kv_head) * DIM + dims, position * DIM + dims
    other = (dims + DIM // 2) % DIM - dims  # how far it is to the dimension that each one turns with
    queries = _turned(
        new + head[:, None] * DIM + dims[None, :], other[None, :], is_query, cos, sin, turns[None, :], TURNS
    )
    key = _turned(new_key, other, is_dim, cos, sin, turns, TURNS)
    value = tl.load(new_key + num_kv_heads * DIM, mask=is_dim, other=0.0)
    is_last = end == position + 1
    table += tl.load(slots + row) * table_stride
    blocks += kv_head * BLOCK_TOKENS * DIM
    here = (
        blocks
        + tl.load(table + position // BLOCK_TOKENS) * block_stride
        + position % BLOCK_TOKENS * DIM
        + dims
    )
    tl.store(here, key, mask=is_dim & is_last)
    tl.store(here + values_offset, value, mask=is_dim & is_last)
    score = tl.sum(queries.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
    if HAS_SOFTCAP:
        score = capped(score, softcap)
    largest = tl.where(is_last, score, float("-inf"))
    total = tl.where(is_last, 1.0, tl.zeros((ROWS,), tl.float32))
    weighted = tl.where(is_last, value.to(tl.float32)[None, :], tl.zeros((ROWS, PADDED), tl.float32))
    end = tl.where(is_last, end - 1, end)
    for first in range(begin, end, TILE):
        token = first + tl.arange(0, TILE)
        seen = token < end
        block = tl.load(table + token // BLOCK_TOKENS, mask=seen, other=0)
        keys_at = blocks + block * block_stride + token % BLOCK_TOKENS * DIM
        # [PADDED, TILE]
        keys = tl.load(keys_at[None, :] + dims[:, None], mask=seen[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee") * scale
        if HAS_SOFTCAP:
            scores = capped(scores, softcap)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights, kept = tl.exp(scores - larger[:, None]), tl.exp(largest - larger)
        values = tl.load(
            keys_at[:, None] + values_offset + dims[None, :], mask=seen[:, None] & is_dim[None, :], other=0.0
        )
        weighted = weighted * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total = total * kept + tl.sum(weights, 1)
        largest = larger
    to = out + (row.to(tl.int64) * num_heads + head[:, None]) * DIM + dims[None, :]
    if num_parts == 1:
        tl.store(to, (weighted / total[:, None]).to(out.dtype.element_ty), mask=is_query)
        return
    at = place * num_heads + head
    tl.store(maxima + at, largest, mask=is_head)
    tl.store(sums + at, total, mask=is_head)
    tl.store(weighted_parts + at[:, None] * DIM + dims[None, :], weighted, mask=is_query)
    tl.debug_barrier()  # all threads have written before one says so
    counter = arrived + row * num_kv_heads + kv_head
    if tl.atomic_add(counter, 1, sem="acq_rel") == num_parts - 1:
        tl.store(counter, 0)
        joined = _joined(
            weighted_parts, maxima, sums, first_part, num_parts, num_heads, head, is_head, dims, is_dim, DIM
        )
        tl.store(to, joined.to(out.dtype.element_ty), mask=is_query)


@triton.jit  # type: ignore[untyped-decorator]
def _joined(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    weighted_parts,
    maxima,
    sums,
    first_part,
    num_parts,
    num_heads,
    head,
    is_head,
    dims,
    is_dim,
    DIM: tl.constexpr,  # noqa: N803
):
    """The weighted values [ROWS, PADDED] of all parts of a row, which other programs wrote: not read from
    this multiprocessor's own cache.
    """
    largest = tl.where(is_head, float("-inf"), 0.0)
    total = tl.zeros_like(largest)
    weighted = tl.zeros_like(largest[:, None] + dims[None, :])
    for part in tl.range(first_part, first_part + num_parts, num_stages=3):
        at = part * num_heads + head
        maximum = tl.load(maxima + at, mask=is_head, other=0.0, cache_modifier=".cg")
        each = tl.load(
            weighted_parts + at[:, None] * DIM + dims[None, :],
            mask=is_head[:, None] & is_dim[None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        larger = tl.maximum(largest, maximum)
        kept, share = tl.exp(largest - larger), tl.exp(maximum - larger)
        total = total * kept + share * tl.load(sums + at, mask=is_head, other=1.0, cache_modifier=".cg")
        weighted = weighted * kept[:, None] + each * share[:, None]
        largest = larger
    return weighted / total[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _turned(at, other, mask, cos, sin, turns, TURNS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803, PLR0913
    """The values `at`, each turned together with the one `other` places further, by the angles that the
    tables have at `turns`.
    """
    values = tl.load(at, mask=mask, other=0.0)
    if TURNS:
        c = tl.load(cos + turns, mask=mask, other=0.0).to(tl.float32)
        s = tl.load(sin + turns, mask=mask, other=0.0).to(tl.float32)
        rolled = tl.load(at + other, mask=mask, other=0.0).to(tl.float32)
        values = (values.to(tl.float32) * c + rolled * s).to(values.dtype)
    return values
