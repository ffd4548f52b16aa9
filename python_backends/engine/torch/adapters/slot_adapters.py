"""Which adapter each slot has, which rows of a step belong to it, and what it adds to their products:
y += (x·Aᵀ)·Bᵀ.

A slot keeps the weights that it was admitted with, whatever is installed or dropped later: a launched step
never loses them. One adapter of a step is computed after the other: on a CPU that costs half of what one
product over all adapters with a mask does. Called by the torch engine and its decoder; `install` and `drop`
also by the loop's thread, between steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from python_backends.engine.device import to_device
from python_backends.engine.torch.adapters.factors import LayerFactors
from python_backends.nouns.request import Ids
from python_backends.nouns.step import Admit, Grow, SlotOperation

Weights = Sequence[LayerFactors]  # of an adapter, by layer


@dataclass(frozen=True, slots=True, eq=False)
class AdapterRows:
    """The rows of a step that have one adapter."""

    rows: slice | Tensor  # of the batch
    weights: Weights


class SlotAdapters:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._installed: dict[str, Weights] = {}  # by digest
        # None: dropped since its sequence left; no row of it is computed
        self._by_slot: dict[int, tuple[str, Weights | None]] = {}
        self._rows: Ids = np.zeros(0, np.int32)  # slots of the rows that `_groups` is of
        self._groups: tuple[AdapterRows, ...] = ()

    def install(self, digest: str, weights: Weights) -> None:
        self._installed[digest] = weights

    def drop(self, digest: str) -> None:
        """No later step admits a sequence with it."""
        del self._installed[digest]

    def apply(self, operations: Iterable[SlotOperation]) -> None:
        """Before the rows of a step are computed."""
        for operation in operations:
            if isinstance(operation, Grow) or not (self._by_slot or self._installed):
                continue
            self._by_slot.pop(operation.slot, None)
            self._rows = self._rows[:0]
            if isinstance(operation, Admit) and operation.adapter.digest:
                digest = operation.adapter.digest
                self._by_slot[operation.slot] = digest, self._installed.get(digest)

    def is_used(self, slots: Ids) -> bool:
        """Whether one of `slots` has an adapter."""
        return bool(self._by_slot) and not self._by_slot.keys().isdisjoint(slots.tolist())

    def groups(self, rows: Ids) -> tuple[AdapterRows, ...]:
        """The rows of each adapter, for `rows` [rows], the slots of a step's rows. The same as in the last
        step if these are the same slots.
        """
        if not np.array_equal(rows, self._rows):
            self._groups = tuple(self._grouped(rows.tolist()))
            self._rows = rows
        return self._groups

    def _grouped(self, slots: list[int]) -> Iterable[AdapterRows]:
        places: dict[str, list[int]] = {}
        weights: dict[str, Weights | None] = {}
        for row, slot in enumerate(slots):
            if slot in self._by_slot:
                digest, weights_of_slot = self._by_slot[slot]
                weights[digest] = weights_of_slot
                places.setdefault(digest, []).append(row)
        for digest, rows in places.items():
            found = weights[digest]
            if found is None:
                raise RuntimeError(f"a step computes with the adapter {digest}, which is not installed")
            yield AdapterRows(self._index(rows), found)

    def _index(self, rows: list[int]) -> slice | Tensor:
        """Neighbours as a slice: their part of a product is changed where it lies."""
        if rows[-1] - rows[0] == len(rows) - 1:
            return slice(rows[0], rows[-1] + 1)
        return to_device(np.array(rows, np.int64), self._device)


def add_adapters(y: Tensor, x: Tensor, layer: int, name: str, adapters: Iterable[AdapterRows]) -> Tensor:
    """Changes `y` [rows, out], the product `name` of `x` [rows, in], where rows have one; returns it."""
    for each in adapters:
        factors = each.weights[layer].get(name)
        if factors is None:
            continue
        change = (x[each.rows] @ factors.a.T) @ factors.b.T
        if isinstance(each.rows, slice):
            y[each.rows] += change
        else:
            y.index_add_(0, each.rows, change)
    return y
