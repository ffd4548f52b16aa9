"""What the slot operations of a plan write on the device: gathered, sent together, and put into place by one
kernel where kernels run.

Owns what waits to be written. The slot state and what it is made of add to it; the slot state calls `write`,
once for each plan.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.device import to_device


class Target(IntEnum):
    """Which tensor, in the order in which `write` takes them."""

    TABLE = 0
    COUNTS = 1
    STOP_IDS = 2
    SHARES = 3  # float32, the others int64


class SlotWrites:
    def __init__(self, kernels: bool) -> None:
        self._kernels = kernels
        self._waiting: list[tuple[Target, NDArray[Any], NDArray[Any], NDArray[Any]]] = []

    def add(self, target: Target, slots: NDArray[Any], columns: NDArray[Any], values: NDArray[Any]) -> None:
        """target[slots, columns] = values, in numpy's sense. The same place is not added twice before
        `write`.
        """
        self._waiting.append((target, slots, columns, values))

    def write(self, *targets: Tensor) -> None:
        """Writes to `targets`, each [slots, columns], in the order of `Target`."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if self._kernels:
            from python_backends.engine.slots.write_kernel import write  # brings Triton's language

            packed = [_packed(target, targets[target], *values) for target, *values in waiting]
            write(to_device(np.concatenate(packed, axis=1), targets[0].device), targets)
            return
        for target, slots, columns, values in waiting:
            _write(targets[target], slots, columns, values)


def _write(target: Tensor, slots: NDArray[Any], columns: NDArray[Any], values: NDArray[Any]) -> None:
    if target.device.type == "cpu":
        target.numpy()[slots, columns] = values
    else:
        offsets, values = np.broadcast_arrays(slots * target.shape[1] + columns, values)
        target.view(-1)[to_device(offsets.ravel().copy(), target.device)] = to_device(
            values.ravel().copy(), target.device
        )


def _packed(
    number: Target, target: Tensor, slots: NDArray[Any], columns: NDArray[Any], values: NDArray[Any]
) -> NDArray[np.int64]:
    """[3, values] which tensor, the place in it, the value or its bits."""
    if values.dtype == np.float32:
        values = values.view(np.int32)
    places, values = np.broadcast_arrays(
        slots.astype(np.int64) * target.shape[1] + columns, values.astype(np.int64)
    )
    return np.stack([np.full(places.size, number, np.int64), places.ravel(), values.ravel()])
