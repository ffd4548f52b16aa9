"""KV blocks in a host's memory as bytes, for a move to another instance. Called by the torch engine.

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
    """Reads and writes `blocks` [blocks, bytes of a block] where an engine has them."""

    def __init__(self, blocks: Bytes) -> None:
        self._blocks = blocks

    def read(self, blocks: Ids) -> Bytes:
        """A copy of `blocks` [n]: [n · bytes of a block]."""
        return self._blocks.take(blocks, axis=0).reshape(-1)

    def write(self, blocks: Ids, data: memoryview | NDArray[Any]) -> None:
        """Writes `data`, as `read` gives it, to `blocks` [n]. Raises ValueError if it has another size."""
        self._blocks[blocks] = rows_of(data, len(blocks), self._blocks.shape[1])
