"""Which rows of a step's flat batch attend to what: made once a step by the
step batch, read by the attention of every layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


def chunk_rows(dtype: torch.dtype) -> int:
    """Rows of a tile of a chunk, the most: what a program of the kernel
    holds in registers without spilling them.
    """
    return 16 if dtype == torch.float32 else 64


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows [first, last) of the flat batch, decode rows all, read up to the longest of them."""

    first: int
    last: int
    gather: Tensor  # [2 · rows · kv_heads · blocks] rows of the KV cache
    mask: Tensor  # [rows, 1, 1, blocks · block_tokens] 0 or −inf


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Rows [first, last) of the flat batch, decode rows all, each read
    from its own blocks up to its own position.
    """

    first: int
    last: int
    table: Tensor  # [rows, blocks]
    positions: Tensor  # [rows]
    window: int | None


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
class PagedChunks:
    """Rows [first, last) of the flat batch, all chunks: each row reads from the
    blocks of its own slot up to its own position.
    """

    first: int
    last: int
    tiles: Tensor  # [tiles, 4] a few rows of one chunk: first row after `first`, rows, first position, slot
    table: Tensor  # [slots, blocks]
    window: int | None


@dataclass(frozen=True, slots=True)
class AttentionSpans:
    """All rows of the flat batch, in order. Those of padding attend to nothing."""

    decodes: tuple[DecodeGroup | PagedRows, ...]
    prefills: tuple[PrefillSpan | PagedChunks, ...]
    num_padding: int = 0  # rows after them

    def followed_by(self, chunks: AttentionSpans, num_rows: int) -> AttentionSpans:
        """These, which are of `num_rows` decode rows, and then those of another batch, which has chunks."""
        moved = [
            replace(span, first=num_rows + span.first, last=num_rows + span.last) for span in chunks.prefills
        ]
        return AttentionSpans(self.decodes, tuple(moved), chunks.num_padding)
