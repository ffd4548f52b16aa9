"""The static slots of one instance: one row each of a few arrays, so that a step changes all rows at once.

Owns the counts and tokens of running sequences; decides nothing. Called by the slot scheduler alone.

Counts of a row: `computed` tokens have their KV in blocks; `known` tokens have been read from the engine (prompt and earlier output
at first); `planned` counts those of launched steps as well. A row prefills while computed < target, which is what it was seated
with; the last chunk yields its first new token, and from then on it decodes and computed = planned − 1.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from python_backends.request import Ids
from python_backends.scheduling.sequence import NO_SLOT, Sequence, Status

GROWTH_TOKENS = 128  # a slot gets blocks for so many tokens to come: an operation every 128 steps, not every 16
MAX_PENDING = 64  # steps
Rows = slice | Ids  # some rows of the table: neighbours as a slice, which numpy reads without looking at each


class SlotTable:
    def __init__(self, num_slots: int, max_model_tokens: int) -> None:
        self.num_slots = num_slots
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.live: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.epochs: Ids = np.zeros(num_slots, np.int32)  # counts the lives of a slot
        self.tokens: Ids = np.zeros((num_slots, max_model_tokens + 1), np.int32)  # untouched rows cost no memory
        self.computed: Ids = np.zeros(num_slots, np.int32)
        self.known: Ids = np.zeros(num_slots, np.int32)
        self.planned: Ids = np.zeros(num_slots, np.int32)
        self.targets: Ids = np.zeros(num_slots, np.int32)  # tokens to prefill
        self.limits: Ids = np.zeros(num_slots, np.int32)  # most tokens the row may come to hold
        self.capacity: Ids = np.zeros(num_slots, np.int32)  # tokens that its blocks can hold
        self.prompts: Ids = np.zeros(num_slots, np.int32)  # prompt length; output index 0 stands there
        self.request_ids: NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self.stream_epochs: Ids = np.zeros(num_slots, np.int32)
        self._free = list(range(num_slots))
        self._pending: list[Ids] = []  # tokens of the last steps, all of `_pending_slots`, that are known and not written yet
        self._pending_slots: Ids = np.zeros(0, np.int32)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_busy(self) -> int:
        return self.num_slots - len(self._free)

    def running(self) -> list[Sequence]:
        """The sequences in slots, in order of arrival."""
        return sorted((s for s in self.sequences if s is not None), key=lambda sequence: sequence.arrival)

    def seat(self, sequence: Sequence, num_computed: int, limit: int) -> int:
        """Gives `sequence` the lowest free slot."""
        slot = heapq.heappop(self._free)
        count = len(sequence.tokens)
        self.sequences[slot] = sequence
        self.live[slot] = True
        self.epochs[slot] += 1
        self.tokens[slot, :count] = sequence.tokens
        self.computed[slot] = num_computed
        self.known[slot] = self.planned[slot] = self.targets[slot] = count
        self.limits[slot] = limit
        self.prompts[slot] = sequence.num_prompt_tokens
        self.request_ids[slot] = sequence.request_id
        self.stream_epochs[slot] = sequence.epoch
        sequence.slot, sequence.status = slot, Status.RUNNING
        return slot

    def leave(self, sequence: Sequence) -> int:
        """Frees the slot of `sequence`, which takes its known tokens along. Returns the slot."""
        slot = self.vacate(sequence)
        self.free(slot)
        return slot

    def vacate(self, sequence: Sequence) -> int:
        """Takes `sequence` out of its slot, which is not free before the engine has let go of it. Returns the slot."""
        self.write_tokens()
        slot = sequence.slot
        sequence.tokens = self.tokens[slot, : self.known[slot]].copy()
        sequence.slot = NO_SLOT
        self.sequences[slot] = None
        self.live[slot] = False
        return slot

    def free(self, slot: int) -> None:
        heapq.heappush(self._free, slot)

    def decoding(self) -> Ids:
        """Slots whose next span is a decode, ascending."""
        ready = self.live & (self.computed >= self.targets) & (self.planned < self.limits)
        return np.flatnonzero(ready).astype(np.int32)

    def num_steady_steps(self, rows: Rows) -> int:
        """Steps that `rows`, which decode, can go on before one of them ends by length or needs more blocks."""
        planned = self.planned[rows]
        return int(np.minimum(self.limits[rows] - planned, self.capacity[rows] + 1 - planned).min())

    def decode(self, rows: Rows) -> None:
        """One more decode step is planned for `rows`."""
        self.computed[rows] += 1
        self.planned[rows] += 1

    def append(self, slots: Ids, rows: Rows, tokens: Ids) -> Ids:
        """`slots` [n], which are `rows`, have one more token each. How many they have now.

        Tokens of the same rows are written together, some steps at once: one row lies far from the next.
        """
        if slots is not self._pending_slots or len(self._pending) == MAX_PENDING:
            self.write_tokens()
        self._pending_slots = slots
        self._pending.append(tokens)
        self.known[rows] += 1
        return self.known[rows]

    def write_tokens(self) -> None:
        """From now on `tokens` has all that are known."""
        if self._pending:
            slots, count = self._pending_slots, len(self._pending)
            columns = self.known[slots][:, None] + np.arange(-count, 0)
            self.tokens[slots[:, None], columns] = np.stack(self._pending, axis=1)
            self._pending = []

    def prefilling(self) -> list[int]:
        """Slots with a prompt left to compute, in order of arrival."""
        slots = np.flatnonzero(self.live & (self.computed < self.targets)).tolist()
        return sorted(slots, key=self.arrival)

    def arrival(self, slot: int) -> int:
        sequence = self.sequences[slot]
        assert sequence is not None
        return sequence.arrival


def rows_of(slots: Ids) -> Rows:
    """`slots`, ascending, as an index."""
    if len(slots) and slots[-1] - slots[0] == len(slots) - 1:
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return slots
