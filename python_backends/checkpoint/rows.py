"""Rows of a large matrix, some at a time, so that it is not in memory twice while it becomes another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NUMBERS = 1 << 17  # at a time: what is computed of them stays in a cache


def rows_at_once(columns: int) -> int:
    return max(1, NUMBERS // max(1, columns))


def in_pieces(matrix: Tensor) -> Iterator[Tensor]:
    whole, size = matrix.contiguous(), rows_at_once(matrix.shape[-1])
    return (whole[first : first + size] for first in range(0, len(whole), size))


def filled(whole: Tensor, pieces: Iterable[Tensor]) -> Tensor:
    """`whole`, whose rows are now those of `pieces`."""
    first = 0
    for piece in pieces:
        whole[first : first + len(piece)] = piece
        first += len(piece)
    return whole
