"""Rows that are read once: their memory is given back to Linux while others are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from python_backends.linux.freed_memory import give_back_pages


def used_up(pieces: Iterable[Tensor]) -> Iterator[Tensor]:
    """Contiguous pieces in turn, used here alone: the memory of each is given back, also that of a
    mapped file, before the next one is given.
    """
    last = None
    for piece in pieces:
        yield piece
        # of the last one once more: Linux maps pages of a file before the one that is read, too
        for used in (piece, last):
            if used is not None:
                give_back_pages(used.data_ptr(), used.nbytes)
        last = piece
