"""Which LoRA adapters are loaded, and which waiting sequences may therefore get a slot.

Owns the list of loaded adapters, in the order of their last use. Loads nothing: the loop asks what is
`wanted`, and says what was loaded or dropped. An adapter is known by the digest of its content, so two names
of the same content are one; a sequence without a digest needs none. Called by the slot scheduler and the
loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from python_backends.nouns.request import AdapterVersion
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.state.slots import SlotTable
from python_backends.scheduling.waiting import WaitingList


class LoadedAdapters:
    def __init__(self, slots: SlotTable, waiting: WaitingList) -> None:
        self.is_served = False
        self.wanted: AdapterVersion | None = None  # the first that a sequence waits for
        self._slots = slots
        self._waiting = waiting
        # of the sequences whose turn is before that of the first which waits for `wanted`
        self._earlier: set[str] = set()
        # a sequence that was passed over for too long waits for its adapter: no other adapter gets into use
        self._is_held_up = False
        # by digest, the longest unused first: number of the first step after the last that may compute it
        self._loaded: OrderedDict[str, int] = OrderedDict()

    @property
    def num_loaded(self) -> int:
        return len(self._loaded)

    def serve(self) -> None:
        """From now on sequences with adapters are taken: the loop loads what is wanted."""
        self.is_served = True

    def is_loaded(self, adapter: AdapterVersion) -> bool:
        return not adapter.digest or adapter.digest in self._loaded

    def is_open(self, digest: str) -> bool:
        """Whether sequences with this adapter, or with none (""), may get a slot."""
        return not digest or (digest in self._loaded and not self._is_held_up)

    def unused(self, first_running: int) -> str | None:
        """The digest of the adapter that may be dropped first for the one that is `wanted`; None: sequences
        have all of them, or wait with them and are earlier. `first_running`: number of the oldest step that
        was launched and not read yet.
        """
        used = {sequence.request.adapter.digest for sequence in self._slots.sequences if sequence is not None}
        used |= {sequence.request.adapter.digest for sequence in self._slots.reserved.values()}
        used |= set(filter(self._waiting.has_adapter, self._earlier))
        unused = (
            digest for digest, last in self._loaded.items() if digest not in used and last <= first_running
        )
        return next(unused, None)

    def seatable(self) -> Iterator[Sequence]:
        """The waiting sequences whose adapter is loaded, in the order of their turns. Lazy. Notes the first
        adapter that is missing. Before a sequence that has been passed over for too long and whose adapter is
        missing, only those without an adapter go: the others would keep theirs in use, and it waits until
        one is unused.
        """
        self.wanted, self._is_held_up = None, False
        self._earlier.clear()
        for sequence in self._waiting.in_order(self.is_open):
            adapter = sequence.request.adapter
            if self.is_loaded(adapter):
                if self.wanted is None:
                    self._earlier.add(adapter.digest)
                yield sequence
                continue
            self.want(adapter)
            if self._waiting.is_overdue(sequence):
                self._is_held_up = True
                yield from self._after(sequence)
                return

    def _after(self, overdue: Sequence) -> Iterator[Sequence]:
        """Those whose turn is after that of `overdue`, and which may go."""
        for sequence in self._waiting.in_order(self.is_open):
            is_before = self._waiting.is_overdue(sequence) and sequence.arrival < overdue.arrival
            if self.is_open(sequence.request.adapter.digest) and not is_before:
                yield sequence

    def want(self, adapter: AdapterVersion) -> None:
        if self.wanted is None:
            self.wanted = adapter

    def add(self, digest: str) -> None:
        """It has been loaded."""
        self._loaded[digest] = 0
        self._not_wanted(digest)

    def remove(self, digest: str) -> None:
        """It is about to be dropped."""
        del self._loaded[digest]

    def failed(self, adapter: AdapterVersion) -> list[Sequence]:
        """It can't be loaded. Returns the sequences that wait for it, which stay in the queue."""
        self._not_wanted(adapter.digest)
        return [sequence for sequence in self._waiting if sequence.request.adapter == adapter]

    def used(self, sequence: Sequence) -> None:
        """`sequence` has got a slot."""
        if sequence.request.adapter.digest:
            self._loaded.move_to_end(sequence.request.adapter.digest)

    def left(self, sequence: Sequence, next_step: int) -> None:
        """`sequence` has no slot any more from the step of this number on."""
        digest = sequence.request.adapter.digest
        if digest:
            self._loaded[digest] = next_step

    def _not_wanted(self, digest: str) -> None:
        if self.wanted is not None and self.wanted.digest == digest:
            self.wanted, self._is_held_up = None, False
