"""KV blocks in a GPU's memory as bytes, for a move to another instance. Owns a stream for these copies;
called by the torch engine.

The engine's own stream goes on computing meanwhile. A read needs not wait for it: the caller takes blocks of
steps that have ended. A write waits until the steps that were launched before it have ended, because these
may still write to blocks that were freed. Both return when the copy is done, so a step that is launched after
a write finds what was written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.device import to_device
from python_backends.engine.kv.block_bytes import Bytes, rows_of
from python_backends.engine.kv.kv_cache import rows_of_bytes
from python_backends.nouns.request import Ids


class DeviceBlocks:
    """`blocks` [blocks, …] on a GPU; the engine computes in its default stream."""

    def __init__(self, blocks: Tensor) -> None:
        self._device = blocks.device
        self._rows = blocks.view(len(blocks), -1)
        self._block_bytes = self._rows.shape[1] * blocks.element_size()
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @torch.inference_mode()
    def read(self, blocks: Ids) -> Bytes:
        """A copy of `blocks` [n]: [n · bytes of a block]."""
        with torch.cuda.stream(self._stream):
            picked = self._rows[self._index(blocks)]
            host = self._host_rows(len(blocks)).copy_(picked, non_blocking=True)
        self._stream.synchronize()
        return rows_of_bytes(host).reshape(-1)

    @torch.inference_mode()
    def write(self, blocks: Ids, data: memoryview | NDArray[Any]) -> None:
        """Writes `data`, as `read` gives it, to `blocks` [n]. Raises ValueError if it has another size."""
        rows = rows_of(data, len(blocks), self._block_bytes)
        with torch.cuda.stream(self._stream):
            host = self._host_rows(len(blocks))
            rows_of_bytes(host)[...] = rows
            written = host.to(self._device, non_blocking=True)
            self._stream.wait_stream(torch.cuda.default_stream(self._device))
            self._rows[self._index(blocks)] = written
        self._stream.synchronize()

    def _index(self, blocks: Ids) -> Tensor:
        return to_device(blocks.astype(np.int64), self._device)

    def _host_rows(self, count: int) -> Tensor:
        """Memory from which and to which a copy need not be waited for."""
        return torch.empty(
            (count, self._rows.shape[1]), dtype=self._rows.dtype, pin_memory=self._rows.is_cuda
        )
