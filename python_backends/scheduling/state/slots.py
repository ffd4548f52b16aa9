"""The static slots of one instance: each slot is one row of a few arrays, so that a step changes all rows at
once.

Owns the counts and tokens of running sequences; decides nothing. Other modules read its arrays and change
them only by its methods, as a test checks: the allocator gives and takes slots, the plan writer plans spans,
the booking appends tokens.

Counts of a row: `computed` tokens have their KV in blocks, or will have it after the launched steps; `known`
tokens have been read from the engine (at first: prompt and earlier output); `planned` also counts the tokens
that launched steps will yield. A row prefills while computed < target, the number of tokens that it got its
slot with; the last chunk yields its first new token, and from then on it decodes and computed = planned − 1.
A row that has moved here decodes at once: its target is what has been computed elsewhere, one token less than
it has.

A suspended row keeps its slot and is in no later plan: it is about to go on elsewhere. A reserved slot is
busy and has no row yet: its sequence is about to move here.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids
from python_backends.scheduling.state.sequence import NO_SLOT, Sequence, Status

GROWTH_TOKENS = 128  # a slot gets blocks for its next tokens: an operation every 128 steps, not every 16
Rows = slice | Ids  # some rows of the table: neighbours as a slice, which numpy reads without looking at each


class SlotTable:
    def __init__(self, num_slots: int, max_model_tokens: int) -> None:
        self.num_slots = num_slots
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.reserved: dict[int, Sequence] = {}  # by slot
        self.live: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.suspended: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.generations: Ids = np.zeros(num_slots, np.int32)  # counts the sequences that a slot has had
        # untouched rows cost no memory
        self.tokens: Ids = np.zeros((num_slots, max_model_tokens + 1), np.int32)
        self.computed: Ids = np.zeros(num_slots, np.int32)
        self.known: Ids = np.zeros(num_slots, np.int32)
        self.planned: Ids = np.zeros(num_slots, np.int32)
        self.targets: Ids = np.zeros(num_slots, np.int32)  # tokens to prefill
        self.limits: Ids = np.zeros(num_slots, np.int32)  # most tokens the row may come to hold
        self.capacity: Ids = np.zeros(num_slots, np.int32)  # tokens that its blocks can hold
        self.prompts: Ids = np.zeros(num_slots, np.int32)  # prompt length; output index 0 is there
        self.request_ids: NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self.request_epochs: Ids = np.zeros(num_slots, np.int32)
        self._free = list(range(num_slots))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_busy(self) -> int:
        """Reserved slots are among them."""
        return self.num_slots - len(self._free)

    @property
    def num_reserved(self) -> int:
        return len(self.reserved)

    def sequence(self, slot: int) -> Sequence:
        """The sequence in a slot that has one."""
        sequence = self.sequences[slot]
        assert sequence is not None
        return sequence

    def running(self) -> list[Sequence]:
        """The sequences in slots, in order of arrival."""
        return sorted((s for s in self.sequences if s is not None), key=lambda sequence: sequence.arrival)

    def evictable(self) -> list[Sequence]:
        """The sequences in slots that are not suspended, in order of arrival."""
        return [sequence for sequence in self.running() if not self.suspended[sequence.slot]]

    def reserve(self, sequence: Sequence) -> None:
        """Keeps the lowest free slot for `sequence`."""
        sequence.slot, sequence.status = heapq.heappop(self._free), Status.RESERVED
        self.reserved[sequence.slot] = sequence

    def free_reserved(self, sequence: Sequence) -> None:
        """`sequence` does not move here: the slot that was kept for it is free."""
        slot, sequence.slot, sequence.status = sequence.slot, NO_SLOT, Status.FINISHED
        del self.reserved[slot]
        self.free(slot)

    def seat_moved(self, sequence: Sequence, limit: int) -> None:
        """`sequence` takes the slot that was kept for it, with all of its tokens but the last one computed:
        its next span is a decode.
        """
        del self.reserved[sequence.slot]
        count = len(sequence.tokens) - 1
        self._fill(sequence.slot, sequence, count, limit)
        self.targets[sequence.slot] = count

    def seat(self, sequence: Sequence, num_computed: int, limit: int) -> None:
        """Gives `sequence` the lowest free slot."""
        self._fill(heapq.heappop(self._free), sequence, num_computed, limit)

    def _fill(self, slot: int, sequence: Sequence, num_computed: int, limit: int) -> None:
        count = len(sequence.tokens)
        self.sequences[slot] = sequence
        self.live[slot] = True
        self.generations[slot] += 1
        self.tokens[slot, :count] = sequence.tokens
        self.computed[slot] = num_computed
        self.known[slot] = self.planned[slot] = self.targets[slot] = count
        self.limits[slot] = limit
        self.prompts[slot] = sequence.num_prompt_tokens
        self.request_ids[slot] = sequence.request_id
        self.request_epochs[slot] = sequence.request_epoch
        sequence.slot, sequence.status = slot, Status.RUNNING

    def leave(self, sequence: Sequence) -> None:
        """Frees the slot of `sequence`, which keeps its known tokens."""
        self.free(self.vacate(sequence))

    def vacate(self, sequence: Sequence) -> int:
        """Takes `sequence`, with its known tokens, out of its slot, which
        stays busy until `free`. Returns the slot.
        """
        slot = sequence.slot
        sequence.tokens = self.tokens[slot, : self.known[slot]].copy()
        sequence.slot = NO_SLOT
        self.sequences[slot] = None
        self.live[slot] = self.suspended[slot] = False
        return slot

    def free(self, slot: int) -> None:
        heapq.heappush(self._free, slot)

    def decoding(self) -> Ids:
        """Slots with a decode as next span, ascending."""
        ready = self.live & ~self.suspended & (self.computed >= self.targets) & (self.planned < self.limits)
        return np.flatnonzero(ready).astype(np.int32)

    def num_more_steps(self, rows: Rows) -> int:
        """How many more steps the decode rows `rows` can have before one of
        them ends by length or needs more blocks.
        """
        planned = self.planned[rows]
        return int(np.minimum(self.limits[rows] - planned, self.capacity[rows] + 1 - planned).min())

    def num_written(self, rows: Rows) -> Ids:
        """[n] tokens of the answers in `rows` [n] once the launched steps have ended."""
        return self.planned[rows] - self.prompts[rows]

    def plan_decodes(self, rows: Rows) -> None:
        """One more decode step is planned for `rows`."""
        self.computed[rows] += 1
        self.planned[rows] += 1

    def will_yield(self, slots: Ids, ends: Ids) -> NDArray[np.bool_]:
        """Which of `slots` [n] yield a token in a step that computes them up to `ends` [n]."""
        samples: NDArray[np.bool_] = ends >= self.targets[slots]
        return samples

    def plan_spans(self, slots: Ids, ends: Ids) -> None:
        """A step is planned that computes `slots` [n] up to `ends` [n]."""
        self.computed[slots] = ends
        self.planned[slots[self.will_yield(slots, ends)]] += 1

    def skip_to(self, slot: int, computed: int) -> None:
        """The first `computed` tokens of its prompt are in shared blocks that others have computed."""
        self.computed[slot] = computed

    def set_capacity(self, slot: int, num_tokens: int) -> None:
        """Its blocks have place for `num_tokens` tokens."""
        self.capacity[slot] = num_tokens

    def suspend(self, slot: int) -> None:
        """No later plan computes its row, until `resume`."""
        self.suspended[slot] = True

    def resume(self, slot: int) -> None:
        """Its row goes on, as the life of the request that its sequence names."""
        self.suspended[slot] = False
        self.request_epochs[slot] = self.sequence(slot).request_epoch

    def is_settled(self, slot: int) -> bool:
        """Whether it is suspended, and every launched step that has its row has been booked."""
        return bool(self.suspended[slot] and self.planned[slot] == self.known[slot])

    def append(self, rows: Rows, slots: Ids, tokens: Ids) -> None:
        """Appends one of `tokens` [n] to each of `slots` [n]; `rows` are the same slots as an index."""
        self.tokens[slots, self.known[rows]] = tokens
        self.known[rows] += 1

    def follow(self, slots: Ids) -> None:
        """Sets the counts of `slots` [n] to their known tokens, for an engine that plans its own steps."""
        self.planned[slots] = self.computed[slots] = self.known[slots]

    @property
    def num_prefill_tokens(self) -> int:
        """That live slots still have to compute before their next token."""
        left = self.targets[self.live] - self.computed[self.live]
        return int(left[left > 0].sum())

    def prefilling(self) -> list[int]:
        """Slots with a prompt left to compute, ascending."""
        slots: list[int] = np.flatnonzero(self.live & (self.computed < self.targets)).tolist()
        return slots

    def arrival(self, slot: int) -> float:
        return self.sequence(slot).arrival


def rows_of(slots: Ids) -> Rows:
    """`slots`, ascending, as an index."""
    if len(slots) and slots[-1] - slots[0] == len(slots) - 1:
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return slots
