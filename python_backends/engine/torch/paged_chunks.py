"""Attention of chunks that reads KV blocks directly, as a kernel in the Triton language: a program computes a
head of a few rows of one chunk, whose keys and values are in the cache.

Owns nothing; imported only where it runs (see `kernel_trial`), and called by `paged_attention`,
which shares what is common.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from python_backends.engine.torch.attention_spans import LayerAttention, PagedSpans, chunk_rows

TILE_TOKENS = 64  # of keys and values
LEAST_ROWS = 16  # of a product; fewer query heads are padded


def attend_chunks(
    qkv: Tensor, spans: PagedSpans, tiles: Tensor, layer: LayerAttention, blocks: Tensor, out: Tensor
) -> None:
    """Of the chunks among qkv [tokens, (heads + 2 kv_heads) · dim], into their rows of out [tokens, heads ·
    dim], over the `blocks` [blocks, 2, kv_heads, tokens, dim] of one layer.
    """
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
        num_warps=chunk_warps(qkv.dtype, heads.head_dim),
    )


def chunk_warps(dtype: torch.dtype, head_dim: int) -> int:
    """Of a program for chunks: tiles of 64 rows of heads of more than 128 do not fit into the registers of
    four.
    """
    return 8 if head_dim > 128 and dtype != torch.float32 else 4


def tile_tokens(dtype: torch.dtype, decodes: bool) -> int:
    """Of decode rows half as many: more programs run beside each other on a multiprocessor (by measurement on
    an H100, docs/notebook/cuda.md). In float32 as many as a program holds in registers without spilling them.
    """
    tokens = TILE_TOKENS // 2 if decodes else TILE_TOKENS
    return tokens // 2 if dtype == torch.float32 else tokens


@triton.jit
def capped(scores, softcap):  # type: ignore[no-untyped-def]
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
            scores = capped(scores, softcap)
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
