"""LoRA adapters as the layers take them: factors in panels, and which rows of a step have which.

Owns the packed factors. `PackedAdapter` is made in the thread that reads adapters; `AdapterRows` is called by
`inputs`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from python_backends.engine.cpu.model import FactorsTable, StepTable
from python_backends.engine.cpu.weight_memory import PANEL, WeightMemory, packed
from python_backends.engine.slots.adapter_slots import AdapterSlots
from python_backends.nouns.request import Ids

Factors = tuple[Tensor, Tensor]  # A [rank, in], B [out, rank] with the scale, of one product
PRODUCTS = ("qkv", "o", "up", "down")  # in the order of adapters.h


class PackedAdapter:
    """`gated`: whether the model's feed-forward parts are."""

    def __init__(self, layers: Sequence[Mapping[str, Factors]], gated: bool) -> None:
        self._memory, self._gated = WeightMemory(), gated
        self._kept: list[Tensor] = []  # what the table points to
        tables = [self._factors(layer.get(name), name) for layer in layers for name in PRODUCTS]
        self._table = (FactorsTable * len(tables))(*tables)
        self.address = ctypes.addressof(self._table)

    def _factors(self, factors: Factors | None, name: str) -> FactorsTable:
        if factors is None:
            return FactorsTable()
        a, b = factors
        rank = -(-len(a) // PANEL) * PANEL
        whole = functional.pad(b, (0, rank - len(a)))
        a, b = packed(a, self._memory), packed(whole, self._memory, self._gated and name == "up")
        self._kept += [a, b]
        return FactorsTable(a.data_ptr(), b.data_ptr(), rank)


class AdapterRows:
    """Of the steps' rows. Keeps the adapters of the last step while the library may read them."""

    def __init__(self, slots: AdapterSlots[PackedAdapter]) -> None:
        self._slots = slots
        self._adapters: list[PackedAdapter] = []
        self._addresses: NDArray[np.uintp] = np.zeros(0, np.uintp)
        self._numbers: NDArray[np.int32] = np.zeros(0, np.int32)  # [rows], −1: none

    def put(self, table: StepTable, slots: Ids, lengths: Ids) -> None:
        """Of spans of `lengths` [spans] rows in `slots` [spans]."""
        if not self._slots.is_used(slots):
            table.adapters = table.adapter_of = None
            return
        found = [self._slots.of(slot) for slot in slots.tolist()]
        adapters = dict(each for each in found if each is not None)
        places = {digest: number for number, digest in enumerate(adapters)}
        numbers = [-1 if each is None else places[each[0]] for each in found]
        self._adapters = list(adapters.values())
        self._addresses = np.array([each.address for each in self._adapters], np.uintp)
        self._numbers = np.repeat(np.array(numbers, np.int32), lengths)
        table.adapters, table.adapter_of = self._addresses.ctypes.data, self._numbers.ctypes.data
