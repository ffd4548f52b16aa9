"""Which adapter each slot has. A slot keeps the one that it was admitted with, whatever is installed or
dropped later: a launched step never loses it.

Owns the installed adapters, as their engine keeps them. `install` and `drop` are called by the loop's thread,
between steps; the others by the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from python_backends.nouns.request import Ids
from python_backends.nouns.step import Admit, Grow, SlotOperation

Kept = TypeVar("Kept")  # an adapter as its engine keeps it


class AdapterSlots(Generic[Kept]):
    def __init__(self) -> None:
        self._installed: dict[str, Kept] = {}  # by digest
        # None: dropped since its sequence left; no row of it is computed
        self._by_slot: dict[int, tuple[str, Kept | None]] = {}

    def install(self, digest: str, weights: Kept) -> None:
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
            if isinstance(operation, Admit) and operation.adapter.digest:
                digest = operation.adapter.digest
                self._by_slot[operation.slot] = digest, self._installed.get(digest)

    def is_used(self, slots: Ids) -> bool:
        """Whether one of `slots` has an adapter."""
        return bool(self._by_slot) and not self._by_slot.keys().isdisjoint(slots.tolist())

    def of(self, slot: int) -> tuple[str, Kept] | None:
        """Its digest and the adapter; None: the slot has none. Raises RuntimeError for one that is not
        installed.
        """
        if slot not in self._by_slot:
            return None
        digest, found = self._by_slot[slot]
        if found is None:
            raise RuntimeError(f"a step computes with the adapter {digest}, which is not installed")
        return digest, found
