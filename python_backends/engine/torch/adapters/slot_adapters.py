"""Which rows of a step belong to each adapter, and what it adds to their products: y += (x·Aᵀ)·Bᵀ.

On a CPU one adapter of a step is computed after the other, which costs half of what one
product over all adapters with a mask does. On a GPU several adapters are one product (`joined_adapters`).
Called by the torch engine and its decoder; `install` and `drop` also by the loop's thread, between steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from python_backends.engine.device import to_device
from python_backends.engine.slots.adapter_slots import AdapterSlots
from python_backends.engine.torch.adapters.factors import LayerFactors
from python_backends.engine.torch.adapters.joined_adapters import JoinedAdapters, JoinedRows
from python_backends.nouns.request import Ids
from python_backends.nouns.step import Grow, SlotOperation

Weights = Sequence[LayerFactors]  # of an adapter, by layer


class AdaptedRows(Protocol):
    """Rows of a step, and what adapters add to their products."""

    def add(self, y: Tensor, x: Tensor, layer: int, name: str) -> None:
        """Changes `y` [rows, out], the product `name` of `x` [rows, in], where rows have an adapter."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AdapterRows:
    """The rows of a step that have one adapter."""

    rows: slice | Tensor  # of the batch
    weights: Weights

    def add(self, y: Tensor, x: Tensor, layer: int, name: str) -> None:
        factors = self.weights[layer].get(name)
        if factors is None:
            return
        change = (x[self.rows] @ factors.a.T) @ factors.b.T
        if isinstance(self.rows, slice):
            y[self.rows] += change
        else:
            y.index_add_(0, self.rows, change)


class SlotAdapters(AdapterSlots[Weights]):
    """`joins`: several adapters of a step are computed as one product."""

    def __init__(self, device: torch.device, joins: bool = False) -> None:
        super().__init__()
        self._device, self._joins = device, joins
        self._rows: Ids = np.zeros(0, np.int32)  # slots of the rows that `_groups` is of
        self._groups: tuple[AdaptedRows, ...] = ()
        self._joined: tuple[list[str], JoinedAdapters] | None = None  # of these digests

    def drop(self, digest: str) -> None:
        super().drop(digest)
        self._joined, self._groups, self._rows = None, (), self._rows[:0]

    def apply(self, operations: Iterable[SlotOperation]) -> None:
        super().apply(operations)
        if not all(isinstance(operation, Grow) for operation in operations):
            self._rows = self._rows[:0]

    def groups(self, rows: Ids) -> tuple[AdaptedRows, ...]:
        """What adapters do, for `rows` [rows], the slots of a step's rows. The same as in the last step if
        these are the same slots.
        """
        if not np.array_equal(rows, self._rows):
            self._groups = self._grouped(rows.tolist())
            self._rows = rows
        return self._groups

    def _grouped(self, slots: list[int]) -> tuple[AdaptedRows, ...]:
        places: dict[str, list[int]] = {}
        weights: dict[str, Weights] = {}
        for row, slot in enumerate(slots):
            if (adapter := self.of(slot)) is not None:
                digest, found = adapter
                weights[digest] = found
                places.setdefault(digest, []).append(row)
        is_simple = len(places) == 1 and _are_neighbours(next(iter(places.values())))
        if self._joins and not is_simple:
            return (self._joined_rows(len(slots), places, weights),)
        return tuple(AdapterRows(self._index(rows), weights[digest]) for digest, rows in places.items())

    def _joined_rows(
        self, num_rows: int, places: dict[str, list[int]], weights: dict[str, Weights]
    ) -> JoinedRows:
        """Adapters stay joined while steps use no others: to join them takes longer than a step."""
        if self._joined is None or not weights.keys() <= set(self._joined[0]):
            self._joined = None  # its memory is free before the next is made
            self._joined = list(weights), JoinedAdapters(list(weights.values()))
        digests, joined = self._joined
        numbers = np.full(num_rows, -1, np.int64)
        for digest, rows in places.items():
            numbers[rows] = digests.index(digest)
        dtype = next(each.a.dtype for found in weights.values() for layer in found for each in layer.values())
        return JoinedRows(joined, to_device(numbers, self._device), dtype)

    def _index(self, rows: list[int]) -> slice | Tensor:
        """Neighbours as a slice: their part of a product is changed where it lies."""
        if _are_neighbours(rows):
            return slice(rows[0], rows[-1] + 1)
        return to_device(np.array(rows, np.int64), self._device)


def _are_neighbours(rows: list[int]) -> bool:
    return rows[-1] - rows[0] == len(rows) - 1


def add_adapters(y: Tensor, x: Tensor, layer: int, name: str, adapters: Iterable[AdaptedRows]) -> Tensor:
    """Changes `y` [rows, out], the product `name` of `x` [rows, in], where rows have one; returns it."""
    for each in adapters:
        each.add(y, x, layer, name)
    return y
