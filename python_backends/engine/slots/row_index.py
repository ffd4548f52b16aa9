"""Some rows of a batch as a device tensor, which is sent again only when they change: later steps of a run
send nothing.

Called by the slot state, once for each thing that only some rows ask for.
Tested in tests/cpu/test_penalties.py.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.device import to_device


class RowIndex:
    def __init__(self, device: torch.device) -> None:
        self._host: NDArray[np.int64] = np.zeros(0, np.int64)
        self._device, self._rows = device, to_device(self._host, device)

    def of(self, rows: NDArray[np.int64]) -> Tensor:
        """`rows` [n] on the device."""
        if not np.array_equal(rows, self._host):
            self._host, self._rows = rows, to_device(rows, self._device)
        return self._rows
