"""The static slots of one instance: one row each of a few arrays, so that a step changes all rows at once.

Owns the counts and tokens of running sequences; decides nothing. Called by the slot scheduler alone.

Counts of a row: `computed` tokens have their KV in blocks; `known` tokens have been read from the engine (prompt and earlier output
at first); `planned` counts those of launched steps as well. A row prefills while computed < target, which is what it was seated
with; the last chunk yields its first new token, and from then on it decodes and computed = planned − 1.

In a run of steps of the very same rows all of these counts grow by one a step, so only the steps are counted. The rows follow when
somebody looks at them, or when other rows come.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids
from python_backends.scheduling.state.sequence import NO_SLOT, Sequence, Status

GROWTH_TOKENS = 128  # a slot gets blocks for so many tokens to come: an operation every 128 steps, not every 16
Rows = slice | Ids  # some rows of the table: neighbours as a slice, which numpy reads without looking at each


class SlotTable:
    def __init__(self, num_slots: int, max_model_tokens: int) -> None:
        self.num_slots = num_slots
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.live: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.epochs: Ids = np.zeros(num_slots, np.int32)  # counts the lives of a slot
        self.tokens: Ids = np.zeros((num_slots, max_model_tokens + 1), np.int32)  # untouched rows cost no memory
        self._computed: Ids = np.zeros(num_slots, np.int32)
        self._known: Ids = np.zeros(num_slots, np.int32)
        self._planned: Ids = np.zeros(num_slots, np.int32)
        self.targets: Ids = np.zeros(num_slots, np.int32)  # tokens to prefill
        self.limits: Ids = np.zeros(num_slots, np.int32)  # most tokens the row may come to hold
        self.capacity: Ids = np.zeros(num_slots, np.int32)  # tokens that its blocks can hold
        self.prompts: Ids = np.zeros(num_slots, np.int32)  # prompt length; output index 0 stands there
        self.request_ids: NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self.stream_epochs: Ids = np.zeros(num_slots, np.int32)
        self._free = list(range(num_slots))
        self._decoding: Rows = slice(0)  # rows of the last decode steps that were planned
        self._num_unsettled = 0  # of these steps, that `_computed` and `_planned` don't have yet
        self._appended: Ids = np.zeros(0, np.int32)  # slots of the last tokens that became known
        self._unwritten: list[Ids] = []  # those tokens, of one step after the other, that `_known` and `tokens` don't have yet

    @property
    def computed(self) -> Ids:
        self._settle()
        return self._computed

    @property
    def planned(self) -> Ids:
        self._settle()
        return self._planned

    @property
    def known(self) -> Ids:
        self.write_tokens()
        return self._known

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
        """One more decode step is planned for `rows`: the very same object for as long as they stay the same."""
        if rows is not self._decoding:
            self._settle()
            self._decoding = rows
        self._num_unsettled += 1

    def append(self, slots: Ids, tokens: Ids) -> None:
        """`slots` [n] have one more token each; the very same array for as long as they stay the same.

        Tokens of the same slots are written together, some steps at once: one row lies far from the next.
        """
        if slots is not self._appended:
            self.write_tokens()
            self._appended = slots
        self._unwritten.append(tokens)

    def write_tokens(self) -> None:
        """From now on `tokens` has all that are known."""
        if self._unwritten:
            slots, count = self._appended, len(self._unwritten)
            columns = self._known[slots][:, None] + np.arange(count)
            self.tokens[slots[:, None], columns] = np.stack(self._unwritten, axis=1)
            self._known[slots] += count
            self._unwritten = []

    def _settle(self) -> None:
        if self._num_unsettled:
            self._computed[self._decoding] += self._num_unsettled
            self._planned[self._decoding] += self._num_unsettled
            self._num_unsettled = 0

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
