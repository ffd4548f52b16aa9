"""Keys and values of all layers, in blocks: [blocks, layers, 2, tokens, kv_heads, dim], so that a block is one contiguous run.

Owns that tensor and the arithmetic from (block, layer, offset) to its rows; which block belongs to whom is the scheduler's.
Called by the step batch (rows), the decoder (write) and attention (gather).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockShape:
    num_layers: int
    block_tokens: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.num_layers * 2 * self.block_tokens * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    def __init__(self, shape: BlockShape, num_blocks: int, device: torch.device) -> None:
        self.shape = shape
        sizes = (num_blocks, shape.num_layers, 2, shape.block_tokens, shape.num_kv_heads, shape.head_dim)
        self.blocks = torch.zeros(sizes, dtype=shape.dtype, device=device)  # untouched blocks cost no memory on a CPU
        width = shape.num_kv_heads * shape.head_dim
        self._tokens = self.blocks.view(-1, width)  # a row: keys or values of one token in one layer
        self._runs = self.blocks.view(-1, shape.block_tokens * width)  # a row: keys or values of one block in one layer
        self._layers = torch.arange(shape.num_layers, device=device) * 2
        self._pair = torch.arange(2, device=device)  # keys, values
        self._gathered = torch.empty(0, dtype=shape.dtype, device=device)

    def write_rows(self, blocks: Tensor, offsets: Tensor) -> Tensor:
        """Where tokens at `offsets` [tokens] of `blocks` [tokens] are written: [layers, tokens, 2]."""
        runs = self._run_rows(blocks)  # [layers, 2, tokens]
        return (runs * self.shape.block_tokens + offsets).transpose(1, 2)

    def gather_rows(self, blocks: Tensor) -> Tensor:
        """Where `blocks` [rows, n] are read from: [layers, 2 · rows · n]."""
        return self._run_rows(blocks.reshape(-1)).flatten(1)

    def write(self, rows: Tensor, keys_values: Tensor) -> None:
        """Writes keys_values [tokens, 2, kv_heads · dim] to `rows` [tokens, 2] of one layer."""
        self._tokens[rows] = keys_values

    def gather(self, rows: Tensor, num_sequences: int) -> tuple[Tensor, Tensor]:
        """Keys and values [sequences, kv_heads, tokens, dim] of one layer; they are overwritten by the next call."""
        shape = self.shape
        out = self._room(len(rows))
        torch.index_select(self._runs, 0, rows, out=out)
        both = out.view(2, num_sequences, -1, shape.num_kv_heads, shape.head_dim).transpose(2, 3)
        return both[0], both[1]

    def _run_rows(self, blocks: Tensor) -> Tensor:  # [n] → [layers, 2, n]
        first = blocks * (2 * self.shape.num_layers)
        return (self._layers[:, None] + self._pair)[..., None] + first

    def _room(self, num_runs: int) -> Tensor:
        """One buffer for all layers and steps: it stays in the processor's cache, and nothing is allocated in a step."""
        width = self._runs.shape[1]
        if self._gathered.numel() < num_runs * width:
            self._gathered = self._runs.new_empty(num_runs * width)
        return self._gathered[: num_runs * width].view(num_runs, width)
