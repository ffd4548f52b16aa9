"""Attention that reads KV blocks directly, as kernels in the Triton language: no block is gathered.

All decode rows take one kernel. A program computes one part of the tokens that a row sees (`paged_parts`),
for the query heads that share a KV head: it rotates them, and the last part of a row also rotates the new key
and writes it and the new value to the cache. Where a row has several parts, the program that is done last
puts them together by their maxima and sums, in the order of the parts: results do not depend on who was last.
Lengths are read on the device, so a captured graph holds for all of them. The chunks of a step take two
kernels, however many they are: one that rotates and writes to the cache, and one that computes a head of a
tile in each program. Owns nothing; imported only where it runs (`runs_kernels` of `kernel_trial`), and called
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
    chunk_rows,
)
from python_backends.engine.torch.fused_kernels import place

TILE_TOKENS = 64  # of keys and values
LEAST_ROWS = 16  # of a product; fewer query heads are padded


def attend_paged(
    qkv: Tensor, rotation: Rotation | None, spans: PagedSpans, layer: LayerAttention, cache: KVCache
) -> Tensor:
    """As `attend`: [tokens, heads · dim] for qkv [tokens, (heads + 2 kv_heads) · dim]. `rotation`: the tables
    [positions, dim]; of rows of padding nothing is computed.
    """
    out = torch.empty((len(qkv), layer.heads.query_width), dtype=qkv.dtype, device=qkv.device)
    blocks = cache.blocks[:, layer.index]
    if spans.parts is not None:
        _decodes(qkv, rotation, spans, spans.parts, layer, blocks, out)
    if spans.tiles is not None:
        place(qkv, rotation, spans, blocks, layer.heads)
        _chunks(qkv, spans, spans.tiles, layer, blocks, out)
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


def _chunks(
    qkv: Tensor, spans: PagedSpans, tiles: Tensor, layer: LayerAttention, blocks: Tensor, out: Tensor
) -> None:
    heads = layer.heads
    _attend_chunk[(heads.num_query_heads, len(tiles))](
        qkv,
        blocks,
        spans.table,
        tiles,
        out,
        qkv.stride(0),
        spans.table.stride(0),
        blocks.stride(0),
        blocks.stride(1),
        heads.scale,
        spans.window or 0,
        layer.softcap or 0.0,
        GROUP=heads.group,
        ROWS=chunk_rows(qkv.dtype),
        DIM=heads.head_dim,
        PADDED=triton.next_power_of_2(max(heads.head_dim, LEAST_ROWS)),
        BLOCK_TOKENS=blocks.shape[3],
        TILE=tile_tokens(qkv.dtype, decodes=False),
        HAS_WINDOW=spans.window is not None,
        HAS_SOFTCAP=layer.softcap is not None,
    )


def tile_tokens(dtype: torch.dtype, decodes: bool) -> int:
    """In float32 as many as a program holds in registers without spilling them."""
    if dtype == torch.float32:
        return TILE_TOKENS // 4 if decodes else TILE_TOKENS // 2
    return TILE_TOKENS


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
        score = _capped(score, softcap)
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
            scores = _capped(scores, softcap)
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
    """What stands `at`, turned with what is `other` further by the angles at `turns` of the tables."""
    values = tl.load(at, mask=mask, other=0.0)
    if TURNS:
        c = tl.load(cos + turns, mask=mask, other=0.0).to(tl.float32)
        s = tl.load(sin + turns, mask=mask, other=0.0).to(tl.float32)
        rolled = tl.load(at + other, mask=mask, other=0.0).to(tl.float32)
        values = (values.to(tl.float32) * c + rolled * s).to(values.dtype)
    return values


@triton.jit
def _capped(scores, softcap):  # type: ignore[no-untyped-def]
    """softcap · tanh(scores / softcap)"""
    return softcap * (2.0 / (1.0 + tl.exp(-2.0 * scores / softcap)) - 1.0)


@triton.jit  # type: ignore[untyped-decorator]
def _attend_chunk(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    qkv,
    blocks,
    table,
    tiles,
    out,
    row_stride,
    table_stride,
    block_stride,
    values_offset,
    scale,
    window,
    softcap,
    GROUP: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    PADDED: tl.constexpr,  # noqa: N803
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
    HAS_WINDOW: tl.constexpr,  # noqa: N803
    HAS_SOFTCAP: tl.constexpr,  # noqa: N803
):
    """One query head of one tile. A row that has seen nothing yet, before its window, has the maximum
    −inf.
    """
    head, tile = tl.program_id(0), tiles + tl.program_id(1) * 4
    first_row, count, start, slot = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    row, dims = tl.arange(0, ROWS), tl.arange(0, PADDED)
    is_here = (row < count)[:, None] & (dims < DIM)
    position = start + row
    queries = tl.load(
        qkv + (first_row + row)[:, None] * row_stride + head * DIM + dims, mask=is_here, other=0.0
    )
    end = start + count
    begin = tl.maximum(start - window + 1, 0) if HAS_WINDOW else start * 0
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS, PADDED), tl.float32)
    for first in range(begin, end, TILE):
        token = first + tl.arange(0, TILE)
        block = tl.load(table + slot * table_stride + token // BLOCK_TOKENS, mask=token < end, other=0)
        # [TILE]
        key = blocks + block * block_stride + (head // GROUP * BLOCK_TOKENS + token % BLOCK_TOKENS) * DIM
        # [PADDED, TILE]
        keys = tl.load(
            key[None, :] + dims[:, None], mask=(token < end)[None, :] & (dims < DIM)[:, None], other=0.0
        )
        scores = tl.dot(queries, keys, input_precision="ieee") * scale
        if HAS_SOFTCAP:
            scores = _capped(scores, softcap)
        seen = token[None, :] <= position[:, None]
        if HAS_WINDOW:
            seen &= token[None, :] > position[:, None] - window
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights, kept = tl.exp(scores - base[:, None]), tl.exp(largest - base)
        values = tl.load(
            key[:, None] + values_offset + dims[None, :],
            mask=(token < end)[:, None] & (dims < DIM)[None, :],
            other=0.0,
        )
        weighted = weighted * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total = total * kept + tl.sum(weights, 1)
        largest = larger
    joined = (weighted / total[:, None]).to(out.dtype.element_ty)
    tl.store(
        out + (first_row + row)[:, None] * (tl.num_programs(0) * DIM) + head * DIM + dims,
        joined,
        mask=is_here,
    )
