"""How weights are packed for the layers, and where they lie: one behind the other, in a few large
pieces of memory.

Between weights that are allocated one by one, what reading them needs for a while leaves holes: a third of
the weights' size with SmolLM2. Linux takes large pages for such a piece, too. Called by `model`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
from torch import Tensor

from python_backends.engine.model.description import Linear
from python_backends.engine.model.four_bits import GROUP

TILE = 16  # outputs of a weight that lie together: panels.h
PANEL = 32  # two tiles; rows that are multiplied at once
PIECE_BYTES = 64 << 20  # what is not used of one takes no memory: nothing writes there
WORD = 8  # codes of 4 bits in one
ALIGNMENT = 64  # of torch's memory, too


class WeightMemory:
    """A piece lives as long as one of the tensors in it."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def copied(self, tensor: Tensor) -> Tensor:
        """Contiguous, at a multiple of ALIGNMENT."""
        return self.joined([tensor], len(tensor))

    def joined(self, pieces: Iterable[Tensor], length: int) -> Tensor:
        """Likewise: pieces [rows, …] one after the other, `length` rows in all."""
        first, whole = 0, torch.empty(0)
        for piece in pieces:
            if not first:
                num_bytes = length * prod(piece.shape[1:]) * piece.element_size()
                whole = self._taken(num_bytes).view(piece.dtype).view(length, *piece.shape[1:])
            whole[first : first + len(piece)].copy_(piece)
            first += len(piece)
        return whole

    def _taken(self, num_bytes: int) -> Tensor:
        whole = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if whole > len(self._free):
            self._free = torch.empty(max(PIECE_BYTES, whole), dtype=torch.uint8)
        taken, self._free = self._free[:num_bytes], self._free[whole:]
        return taken


def packed(
    weight: Tensor, memory: WeightMemory, gated: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """`in_panels`, in `memory`."""
    return memory.copied(in_panels(weight, gated, dtype))


def in_panels(weight: Tensor, gated: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """The weight [out, in] as [panels, in / deep, 2, 16, 16 outputs, wide]: tiles as the processor takes
    them, with deep = 16 · wide inputs; wide is 2 in bfloat16, 1 in float32. A last panel that is not whole is
    filled with zeros. `gated`: it has the rows of gate and then those of up. `dtype`: of what it is
    multiplied with; None: of the weight.
    """
    wide = 4 // (dtype or weight.dtype).itemsize
    tiles = tiled(weight, gated).reshape(-1, 2, TILE, weight.shape[1] // (wide * TILE), TILE, wide)
    return tiles.permute(0, 3, 1, 4, 2, 5)


def packed_fours(linear: Linear, memory: WeightMemory, dtype: torch.dtype, gated: bool = False) -> Tensor:
    """A weight of 4 bits [out, in] as [panels, groups, bytes]: `Fours` of fours.h, with scales and minima of
    `dtype`.
    """
    assert linear.scale is not None
    assert linear.minimum is not None
    numbers = tiled(linear.weight, gated)
    pairs = numbers.reshape(*numbers.shape[:3], -1, 2, 2, 2).transpose(-1, -3)  # 0, 4, 1, 5, and 2, 6, 3, 7
    words = (pairs[..., 0, :] | pairs[..., 1, :] << 4).flatten(-2).view(torch.int32)
    words = words.reshape(*numbers.shape[:3], -1, GROUP // WORD)
    codes = words.permute(0, 3, 4, 1, 2)  # [panels, groups, words of a group, 2, 16]
    of_groups = [tiled(each.to(dtype), gated).permute(0, 3, 1, 2) for each in (linear.scale, linear.minimum)]
    parts = [each.contiguous().flatten(2).view(torch.uint8) for each in (codes, *of_groups)]
    return memory.copied(torch.cat(parts, -1))


def in_quads(weight: Tensor, gated: bool = False) -> Tensor:
    """A weight of int8 [out, in] as [panels, groups, 2, 4, 2, 16 outputs, 2, 2]: the order of bytes.h, of
    each 8 inputs 0, 4, 1, 5, then 2, 6, 3, 7.
    """
    numbers = tiled(weight, gated)
    words = numbers.reshape(*numbers.shape[:3], -1, GROUP // WORD, 2, 2, 2)
    return words.permute(0, 3, 1, 4, 6, 2, 7, 5)


def in_eights(weight: Tensor, *of_groups: Tensor, gated: bool = False) -> Tensor:
    """A weight of 8 bits [out, in] with scales [out, groups], and minima where it has some, as [panels,
    groups, bytes]: `Eights` or `ShiftedEights` of eights.h.
    """
    codes = in_panels(weight, gated, torch.float32).flatten(2)
    kept = [tiled(each, gated).permute(0, 3, 1, 2).contiguous().flatten(2) for each in of_groups]
    return torch.cat([codes, *(each.view(torch.int8) for each in kept)], -1)


def tiled(rows: Tensor, gated: bool) -> Tensor:
    """[rows, …] as [panels, 2, 16, …]; of gate and up, a panel has 16 rows of each."""
    if gated:
        return rows.reshape(2, -1, TILE, *rows.shape[1:]).transpose(0, 1)
    missing = -len(rows) % PANEL
    whole = rows if not missing else torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    return whole.reshape(-1, 2, TILE, *rows.shape[1:])
