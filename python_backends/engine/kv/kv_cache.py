"""Keys and values of all layers, in blocks: [blocks, layers, 2, kv_heads, tokens, dim], so that a block is
one contiguous run.

Heads come before tokens: a gather then returns each head's keys in one piece, over which attention is faster
on a CPU than over strides (docs/design.md). Owns that tensor and the arithmetic from (block, head, offset) to
its rows; which block belongs to which sequence is the slot scheduler's. Called by the step batch (rows), the
decoder (write) and attention (gather).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from python_backends.engine.kv.block_bytes import Bytes


@dataclass(frozen=True, slots=True)
class BlockShape:
    num_layers: int
    block_tokens: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return (
            self.num_layers * 2 * self.num_kv_heads * self.block_tokens * self.head_dim * self.dtype.itemsize
        )

    @property
    def kv_format(self) -> str:
        """The type of a number, and the sizes of a block: what two engines must have in common to exchange
        blocks.
        """
        sizes = (self.num_layers, 2, self.num_kv_heads, self.block_tokens, self.head_dim)
        return f"{str(self.dtype).removeprefix('torch.')} {'x'.join(map(str, sizes))}"


class KVCache:
    """Rows are worked out for the first layer; another layer's are
    the same rows of a view that starts later.
    """

    def __init__(self, shape: BlockShape, num_blocks: int, device: torch.device) -> None:
        self.shape = shape
        sizes = (num_blocks, shape.num_layers, 2, shape.num_kv_heads, shape.block_tokens, shape.head_dim)
        # torch writes the zeros: resident from the start
        self.blocks = torch.zeros(sizes, dtype=shape.dtype, device=device)
        # a row: one head's keys or values in a block
        head_rows = self.blocks.view(-1, shape.block_tokens * shape.head_dim)
        starts = range(0, shape.num_layers * 2 * shape.num_kv_heads, 2 * shape.num_kv_heads)
        self._head_rows = [head_rows[start:] for start in starts]
        # a row: one head's key or value of a token
        self._tokens = [row.view(-1, shape.head_dim) for row in self._head_rows]
        self._heads = torch.arange(2 * shape.num_kv_heads, device=device).view(2, shape.num_kv_heads)
        self._gathered = head_rows.new_empty(0)

    def twin(self) -> KVCache:
        """The same blocks, with a buffer for gathering of its own: this one's is an inference tensor, which
        nothing outside of inference may write.
        """
        twin = copy.copy(self)
        twin._gathered = self.blocks.new_empty(0)
        return twin

    def write_rows(self, blocks: Tensor, offsets: Tensor) -> Tensor:
        """Where tokens at `offsets` [tokens] of `blocks` [tokens] are written: [tokens, 2, kv_heads]."""
        head_rows = self._first_head_rows(blocks)[:, None, None] + self._heads
        return head_rows * self.shape.block_tokens + offsets[:, None, None]

    def gather_rows(self, blocks: Tensor) -> Tensor:
        """Where `blocks` [rows, n] are read from: [2 · rows · kv_heads · n]."""
        return (self._first_head_rows(blocks)[:, None] + self._heads[:, None, :, None]).flatten()

    def write(self, layer: int, rows: Tensor, keys_values: Tensor) -> None:
        """Writes keys_values [tokens, 2, kv_heads, dim] to `rows` [tokens, 2, kv_heads]."""
        self._tokens[layer][rows] = keys_values

    def clear(self, blocks: Tensor) -> None:
        """Writes zeros to `blocks` [n]."""
        self.blocks.index_fill_(0, blocks, 0)

    def gather(self, layer: int, rows: Tensor, num_sequences: int) -> tuple[Tensor, Tensor]:
        """Keys and values [sequences, kv_heads, tokens, dim], contiguous; overwritten by the next call."""
        out = self._scratch(len(rows))
        torch.index_select(self._head_rows[layer], 0, rows, out=out)
        keys, values = out.view(2, num_sequences, self.shape.num_kv_heads, -1, self.shape.head_dim)
        return keys, values

    def _first_head_rows(self, blocks: Tensor) -> Tensor:
        return blocks * (2 * self.shape.num_layers * self.shape.num_kv_heads)

    def _scratch(self, num_rows: int) -> Tensor:
        """One buffer for all layers and steps: it stays in the processor's
        cache, and nothing is allocated in a step.
        """
        width = self._head_rows[0].shape[1]
        if self._gathered.numel() < num_rows * width:
            self._gathered = self._head_rows[0].new_empty(num_rows * width)
        return self._gathered[: num_rows * width].view(num_rows, width)


def rows_of_bytes(tensor: Tensor) -> Bytes:
    """`tensor` [rows, …] of a host's memory, not copied: [rows, bytes]."""
    rows: Bytes = tensor.view(len(tensor), -1).view(torch.uint8).numpy()
    return rows
