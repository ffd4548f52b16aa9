"""KV blocks in a host's memory as bytes, for a move to another instance. Called by the engines.

Copies are numpy's, so the thread that makes them is the only one that works: torch's own operators would
start threads of their own beside those that compute.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids

Bytes = NDArray[np.uint8]


def rows_of(data: memoryview | NDArray[Any], num_rows: int, row_bytes: int) -> Bytes:
    """`data` as rows [num_rows, row_bytes], not copied. Raises ValueError if it has another size."""
    array = np.frombuffer(data, np.uint8)
    if array.size != num_rows * row_bytes:
        raise ValueError(f"{array.size} bytes for {num_rows} blocks of {row_bytes} bytes")
    return array.reshape(num_rows, row_bytes)


class BlockBytes:
    """Reads and writes blocks where an engine has them; owns none of their memory.

    `parts`: what a block consists of, in canonical order; each [blocks, bytes of this part of a block].
    """

    def __init__(self, parts: list[Bytes]) -> None:
        self._parts = parts
        ends = np.cumsum([part.shape[1] for part in parts])
        self._cuts, self._block_bytes = ends[:-1], int(ends[-1])

    def read(self, blocks: Ids) -> Bytes:
        """A copy of `blocks` [n]: [n · bytes of a block]."""
        copies = [part.take(blocks, axis=0) for part in self._parts]
        whole = copies[0] if len(copies) == 1 else np.concatenate(copies, axis=1)
        return whole.reshape(-1)

    def write(self, blocks: Ids, data: memoryview | NDArray[Any]) -> None:
        """Writes `data`, as `read` gives it, to `blocks` [n]. Raises ValueError if it has another size."""
        rows = rows_of(data, len(blocks), self._block_bytes)
        for part, written in zip(self._parts, np.split(rows, self._cuts, axis=1), strict=True):
            part[blocks] = written
