"""Attention that reads KV blocks directly, as kernels in the Triton language: no block is gathered.

Decode rows take two kernels: the tokens that a row sees are divided into `num_splits` parts; a program
computes one part of one row for the query heads that share a KV head, and the second kernel puts the parts
together by their maxima and sums. Lengths are read on the device, so a captured graph holds for all of them.
The chunks of a step take one kernel, however many they are: a program computes one head of one tile. Owns
nothing; imported only where it runs (`runs_kernels` of `kernel_trial`), and called by `attention`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from python_backends.engine.model.description import Heads
from python_backends.engine.torch.attention_spans import PagedChunks, PagedRows, chunk_rows

TILE_TOKENS = 64  # of keys and values; half of that in float32
LEAST_ROWS = 16  # of a product; fewer query heads are padded
WANTED_PROGRAMS = 1024  # enough for several on each of a large device's multiprocessors
MOST_SPLITS = 32  # a power of two


def paged_attention(
    q: Tensor, blocks: Tensor, rows: PagedRows, heads: Heads, softcap: float | None
) -> Tensor:
    """q [rows, heads · dim] → the same shape, over the blocks [blocks,
    2, kv_heads, tokens, dim] of one layer.
    """
    count, dim, window = len(q), heads.head_dim, rows.window
    num_splits = splits_of(count * heads.num_kv_heads)
    parts = torch.empty((count, heads.num_query_heads, num_splits, dim), dtype=torch.float32, device=q.device)
    maxima, sums = (torch.empty(parts.shape[:3], dtype=torch.float32, device=q.device) for _ in range(2))
    out = torch.empty((count, heads.query_width), dtype=q.dtype, device=q.device)
    padded = triton.next_power_of_2(max(dim, LEAST_ROWS))
    _attend_part[(count, heads.num_kv_heads, num_splits)](
        q,
        blocks,
        rows.table,
        rows.positions,
        parts,
        maxima,
        sums,
        q.stride(0),
        rows.table.stride(0),
        blocks.stride(0),
        blocks.stride(1),
        heads.scale,
        window or 0,
        softcap or 0.0,
        GROUP=heads.group,
        ROWS=triton.next_power_of_2(max(heads.group, LEAST_ROWS)),
        DIM=dim,
        PADDED=padded,
        BLOCK_TOKENS=blocks.shape[3],
        TILE=tile_tokens(q.dtype),
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
    )
    grid = (count, heads.num_query_heads)
    _join_parts[grid](parts, maxima, sums, out, num_splits, SPLITS=MOST_SPLITS, DIM=dim, PADDED=padded)
    return out


def chunk_attention(
    qkv: Tensor, blocks: Tensor, chunks: PagedChunks, heads: Heads, softcap: float | None
) -> Tensor:
    """qkv [rows, (heads + 2 kv_heads) · dim] → [rows, heads · dim], over the blocks [blocks, 2, kv_heads,
    tokens, dim] of one layer.
    """
    dim, window = heads.head_dim, chunks.window
    out = torch.empty((len(qkv), heads.query_width), dtype=qkv.dtype, device=qkv.device)
    _attend_chunk[(heads.num_query_heads, len(chunks.tiles))](
        qkv,
        blocks,
        chunks.table,
        chunks.tiles,
        out,
        qkv.stride(0),
        chunks.table.stride(0),
        blocks.stride(0),
        blocks.stride(1),
        heads.scale,
        window or 0,
        softcap or 0.0,
        GROUP=heads.group,
        ROWS=chunk_rows(qkv.dtype),
        DIM=dim,
        PADDED=triton.next_power_of_2(max(dim, LEAST_ROWS)),
        BLOCK_TOKENS=blocks.shape[3],
        TILE=tile_tokens(qkv.dtype),
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
    )
    return out


def tile_tokens(dtype: torch.dtype) -> int:
    return TILE_TOKENS // 2 if dtype == torch.float32 else TILE_TOKENS


def splits_of(programs: int) -> int:
    """Into how many parts, a power of two, each row's tokens are
    divided, so that the device has enough to do.
    """
    wanted = max(1, min(MOST_SPLITS, WANTED_PROGRAMS // programs))
    return 1 << (wanted.bit_length() - 1)


@triton.jit  # type: ignore[untyped-decorator]
def _attend_part(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    q,
    blocks,
    table,
    positions,
    parts,
    maxima,
    sums,
    q_stride,
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
    """Softmax-weighted values of one part, not yet divided by their sum,
    with the maximum and sum that go with them.
    """
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads, num_splits = tl.num_programs(1) * GROUP, tl.num_programs(2)
    head, dims = kv_head * GROUP + tl.arange(0, ROWS), tl.arange(0, PADDED)
    is_head, is_dim = tl.arange(0, ROWS) < GROUP, dims < DIM
    queries = tl.load(
        q + row * q_stride + head[:, None] * DIM + dims, mask=is_head[:, None] & is_dim, other=0.0
    )
    end = tl.load(positions + row) + 1
    begin = tl.maximum(end - window, 0) if HAS_WINDOW else end * 0
    share = tl.cdiv(tl.cdiv(end - begin, num_splits), TILE) * TILE
    begin += split * share
    end = tl.minimum(begin + share, end)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS, PADDED), tl.float32)
    for first in range(begin, end, TILE):
        token = first + tl.arange(0, TILE)
        seen = token < end
        block = tl.load(table + row * table_stride + token // BLOCK_TOKENS, mask=seen, other=0)
        key = blocks + block * block_stride + (kv_head * BLOCK_TOKENS + token % BLOCK_TOKENS) * DIM  # [TILE]
        # [PADDED, TILE]
        keys = tl.load(key[None, :] + dims[:, None], mask=seen[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee") * scale
        if HAS_SOFTCAP:
            scores = softcap * (2.0 / (1.0 + tl.exp(-2.0 * scores / softcap)) - 1.0)  # tanh
        scores = tl.where(seen[None, :], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights, kept = tl.exp(scores - larger[:, None]), tl.exp(largest - larger)
        values = tl.load(
            key[:, None] + values_offset + dims[None, :], mask=seen[:, None] & is_dim[None, :], other=0.0
        )
        weighted = weighted * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total = total * kept + tl.sum(weights, 1)
        largest = larger
    place = (row * num_heads + head) * num_splits + split
    tl.store(maxima + place, largest, mask=is_head)
    tl.store(sums + place, total, mask=is_head)
    tl.store(parts + place[:, None] * DIM + dims, weighted, mask=is_head[:, None] & is_dim)


@triton.jit(do_not_specialize=["num_splits"])  # type: ignore[untyped-decorator]
def _join_parts(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    parts,
    maxima,
    sums,
    out,
    num_splits,
    SPLITS: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    PADDED: tl.constexpr,  # noqa: N803
):
    """One query head of one row; parts without tokens have the maximum −inf and count for nothing.

    `SPLITS` is the most parts that there may be, the same for every number of rows: one kernel is compiled.
    """
    place = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    split, dims = tl.arange(0, SPLITS), tl.arange(0, PADDED)
    is_part, part = split < num_splits, place * num_splits + split
    largest = tl.load(maxima + part, mask=is_part, other=float("-inf"))
    share = tl.exp(largest - tl.max(largest, 0))
    total = tl.sum(share * tl.load(sums + part, mask=is_part, other=0.0), 0)
    each = tl.load(parts + part[:, None] * DIM + dims, mask=is_part[:, None] & (dims < DIM), other=0.0)
    joined = tl.sum(each * share[:, None], 0) / total
    tl.store(out + place * DIM + dims, joined.to(out.dtype.element_ty), mask=dims < DIM)


@triton.jit(do_not_specialize_on_alignment=["qkv"])  # type: ignore[untyped-decorator]
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
    """One query head of one tile. A row that has seen nothing yet, before its window, has the maximum −inf.

    `qkv` begins at any row of a batch, so its alignment is not taken for granted: another one would be
    another kernel to compile.
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
            scores = softcap * (2.0 / (1.0 + tl.exp(-2.0 * scores / softcap)) - 1.0)  # tanh
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
