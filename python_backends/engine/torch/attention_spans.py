"""Which rows of a step's flat batch attend to what: made once a step by the
step batch, read by the attention of every layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from python_backends.engine.model.description import Heads

Rotation = tuple[Tensor, Tensor]  # cos and sin [tokens, 1, dim]; for kernels the tables [positions, dim]


def chunk_rows(dtype: torch.dtype) -> int:
    """The most rows that a tile of a chunk has: as many as a program of the kernel holds in registers without
    spilling them.
    """
    return 16 if dtype == torch.float32 else 64


def attention_mask(positions: Tensor, tokens: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """[rows, tokens] for rows at `positions` [rows]: 0 for each of `tokens` [tokens] or [rows, tokens] up to
    and with the row's own position, as far back as the window goes; −inf for the others.
    """
    positions = positions[:, None]
    hidden = tokens > positions
    if window is not None:
        hidden |= tokens <= positions - window
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return zeros.masked_fill_(hidden, float("-inf"))


@dataclass(frozen=True, slots=True)
class LayerAttention:
    index: int
    heads: Heads
    scores: Callable[..., Tensor]  # with the arguments of scaled_dot_product_attention
    softcap: float | None = None  # what `scores` caps, for those that compute them otherwise


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows [first, last) of the flat batch, decode rows all, read up to the longest of them."""

    first: int
    last: int
    gather: Tensor  # [2 · rows · kv_heads · blocks] rows of the KV cache
    mask: Tensor  # [rows, 1, 1, blocks · block_tokens] 0 or −inf


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Rows [first, last) of the flat batch: one chunk. Without `gather`
    it starts at token 0 and sees itself alone.
    """

    first: int
    last: int
    gather: Tensor | None  # [2 · kv_heads · blocks]
    mask: Tensor | None  # [chunk, blocks · block_tokens]


@dataclass(frozen=True, slots=True)
class AttentionSpans:
    """All rows of the flat batch, in order. Those of padding attend to nothing."""

    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillSpan, ...]
    write: Tensor  # [rows, 2, kv_heads] rows of the KV cache
    num_padding: int = 0  # rows after them


@dataclass(frozen=True, slots=True)
class Parts:
    """The tokens that decode rows see, divided into parts of similar size, and memory for what a layer
    computes of each.

    A row has one part or more, which stand one after the other; those after the last one are empty.
    """

    items: Tensor  # [parts, 5] int32: row, first token, last token + 1, the row's first part, its parts
    weighted: Tensor  # [parts, heads, dim] float32
    maxima: Tensor  # [parts, heads] float32
    sums: Tensor  # [parts, heads] float32
    arrived: Tensor  # [rows, kv_heads] int32: how many parts are done; 0 before and after each layer


@dataclass(frozen=True, slots=True)
class PagedSpans:
    """The rows of a flat batch where kernels read straight from the KV blocks: `num_decodes` decode rows,
    then chunks, then padding.
    """

    num_decodes: int
    num_rows: int  # without padding
    slots: Tensor  # [rows]
    positions: Tensor  # [rows]
    table: Tensor  # [slots, blocks]
    window: int | None
    parts: Parts | None  # None: no row decodes
    # [tiles, 4] a few rows of one chunk: first row of the batch, rows, first position, slot; None: no chunks
    tiles: Tensor | None
