"""Some rows of a batch, or slots, as a device tensor that is sent again only when they change: later steps of
a run send nothing.

Called by the sampling state, once for each thing that only some rows ask for, and by the torch engine's
batchers for the slots that decode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.device import to_device


class RowIndex:
    def __init__(self, device: torch.device) -> None:
        self._host: NDArray[np.integer[Any]] = np.zeros(0, np.int64)
        self._device, self._rows = device, to_device(self._host, device)

    def of(self, rows: NDArray[np.integer[Any]]) -> Tensor:
        """`rows` [n] on the device, as int64."""
        if not np.array_equal(rows, self._host):
            self._host, self._rows = rows, to_device(rows.astype(np.int64), self._device)
        return self._rows
