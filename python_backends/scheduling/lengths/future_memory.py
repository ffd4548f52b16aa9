"""The future-memory curve of an instance: KV blocks in use over the coming steps, from the believed length of
every answer.

The curve's one formula is `in_use` of `lives`. `FutureMemory` keeps a row of it for every slot: computed
again for all slots at once, at most every 50 ms, and in between changed by one row for a sequence that comes
or leaves. A block that several sequences hold is in no row: all such blocks together count once, for as long
as any of their holders may be alive. Blocks that are kept for a sequence which is about to move here are in
use all the time. Called by the slot scheduler, which admits by it, evicts by it, and publishes its peak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from python_backends.scheduling.lengths.belief import MEDIAN, WEIGHTS, Array, Lengths, rest
from python_backends.scheduling.state.allocator import Allocator
from python_backends.scheduling.state.sequence import NO_SLOT, Sequence

NUM_POINTS = 32  # of the curve
# the rest of the blocks is for what no prediction knows, such as a prompt that is longer in the next step
MEMORY_SHARE = 0.95
# standard deviations above the mean: what the running sequences may come to, as others are told
CAUTION = 1.0
# the same where one more is admitted: it is passed over only if memory is nearly certain not to suffice. One
# too many costs an eviction, and its tokens are computed again in few steps; one too few leaves memory empty
# for as long as the others run
ADMITTED = -2.0
Row = tuple[Array, Array]  # mean and variance of the blocks in use, at each point
# at each point: the probability that a sequence is still running, and its blocks if it is
Life = tuple[Array, Array]


def lives(held: Array, tokens: Array, ahead: Array, weights: Array, steps: Array, block_tokens: int) -> Life:
    """Of n sequences this many `steps` from now: the probability that they still run, and their blocks if
    they do, each [n, steps].

    A sequence with `tokens` [n] in `held` [n] blocks gets one token at each step and ends after `ahead` [n,
    levels] steps with probability `weights` [n, levels]; then all of its blocks are free. If the lengths are
    certain, the sum over n of what is `in_use` is Past-Future's memory at the end of each sequence: Σ_{j ≤ i}
    cur_j + i · rem_i, with the sequences sorted by descending rest. Computed in place: to allocate a new
    array of this size costs more than the arithmetic.
    """
    alive, part = np.zeros((2, len(tokens), len(steps)))
    for level in range(ahead.shape[1]):
        np.multiply(weights[:, level, None], ahead[:, level, None] >= steps, out=part)
        alive += part
    blocks: Array = np.add(tokens[:, None], steps, out=part)
    blocks /= block_tokens
    np.ceil(blocks, out=blocks)
    np.maximum(held[:, None], blocks, out=blocks)
    return alive, blocks


def in_use(alive: Array, blocks: Array | float) -> Row:
    """Mean and variance of `blocks` that are in use with probability `alive`."""
    mean: Array = alive * blocks
    variance: Array = blocks - mean
    variance *= mean
    return mean, np.maximum(variance, 0.0, out=variance)


def none_alive(alive: Array) -> Array:
    """[steps] the probability that none of n sequences is alive, if each is alive with probability `alive`
    [n, steps], independently of the others.
    """
    none: Array = np.clip(1.0 - alive, 0.0, 1.0).prod(axis=0)
    return none


def points(ahead: Array) -> Array:
    """The steps at which the curve is looked at: 0, and of the steps at which a
    sequence may end all, or NUM_POINTS evenly picked.
    """
    ends = np.unique(ahead)
    if len(ends) > NUM_POINTS:
        ends = ends[np.linspace(0, len(ends) - 1, NUM_POINTS).astype(np.int64)]
    return np.concatenate([[0.0], ends])


@dataclass(frozen=True, slots=True)
class _Stands:
    """The present state of n sequences."""

    tokens: Array  # [n]
    held: Array  # [n] blocks
    ahead: Array  # [n, levels] tokens to come
    weights: Array  # [n, levels]


@dataclass(frozen=True, slots=True)
class Curve:
    """Blocks in use at each point."""

    mean: Array  # [points] of blocks that one sequence holds
    variance: Array  # [points]
    num_shared: float  # blocks that several hold
    none: Array  # [points] the probability that none of their holders is alive

    def with_one_more(self, life: Life, num_shared: int) -> Curve:
        """Adds a sequence that would hold this many blocks together with others,
        and would keep these in use while it lives.
        """
        alive, blocks = life
        mean, variance = in_use(alive, blocks - num_shared)
        none = self.none * none_alive(alive[None]) if num_shared else self.none
        return Curve(self.mean + mean, self.variance + variance, max(self.num_shared, num_shared), none)

    def without(self, mean: Array, variance: Array) -> Curve:
        """The blocks that one sequence held alone are free."""
        return Curve(self.mean - mean, self.variance - variance, self.num_shared, self.none)

    def total(self) -> Row:
        mean, variance = in_use(1.0 - self.none, self.num_shared)
        return self.mean + mean, self.variance + variance

    def peak(self, deviations: float = CAUTION) -> float:
        """The most that it comes to, this many standard deviations above its mean."""
        mean, variance = self.total()
        return float((mean + deviations * np.sqrt(np.maximum(variance, 0.0))).max())


NOTHING = Curve(np.zeros(1), np.zeros(1), 0.0, np.ones(1))


class FutureMemory:
    """The curve of one instance and its row for each slot, changed by `believe`, `seat`, `leave`, `forget`
    and `compute` of the outlook.

    The curve may reach MEMORY_SHARE of the blocks, ADMITTED standard deviations above its mean; the peak that
    is published is CAUTION above it.
    `sampled`: lengths are drawn from those of answers that ended here recently, as Past-Future does, and
    predictions are ignored.
    """

    def __init__(self, allocator: Allocator, sampled: bool) -> None:
        self.lengths = Lengths()
        self._allocator = allocator
        self._slots = slots = allocator.slots
        self._block_tokens = allocator.blocks.block_tokens
        self._most_blocks = MEMORY_SHARE * allocator.blocks.num_blocks
        self._sampled = sampled
        self._believed: Array = np.ones((slots.num_slots, len(WEIGHTS)))
        self._steps: Array = np.zeros(1)
        self._mean: Array = np.zeros((slots.num_slots, 1))  # a row for each slot; zeros for free slots
        self._variance: Array = np.zeros((slots.num_slots, 1))
        self._curve = NOTHING  # of all rows
        self._candidates: dict[int, Life] = {}  # of the first waiting sequences, by request id
        self.has_curve = False  # False: all rows are zeros

    # --- sequences come and go

    def believe(self, sequence: Sequence) -> None:
        """Uses the prediction of `sequence` from now on; the curve changes when it is next computed."""
        self._candidates.pop(sequence.request_id, None)
        if sequence.slot != NO_SLOT:
            self._believed[sequence.slot] = self._beliefs([sequence])[0]

    def seat(self, sequence: Sequence, num_shared: int) -> None:
        """It has got a slot; other sequences hold `num_shared` of its blocks as well."""
        slot = sequence.slot
        self._believed[slot] = self._beliefs([sequence])[0]
        if not self.has_curve:
            return
        alive, blocks = life = self._life(sequence)
        self._mean[slot], self._variance[slot] = in_use(alive, blocks - num_shared)
        self._curve = self._curve.with_one_more(life, num_shared)

    def leave(self, slot: int) -> None:
        if not self.has_curve:
            return
        self._curve = self._curve.without(self._mean[slot], self._variance[slot])
        self._mean[slot] = self._variance[slot] = 0.0

    # --- the curve

    def holds_all(self, waiting: list[Sequence]) -> bool:
        """Whether all running sequences and those `waiting` would fit if
        every answer used all of its max_tokens. Blocks that only a copy still reads are for none of them.
        """
        limits = np.array([self._allocator.limit(sequence) for sequence in waiting], np.int64)
        most = np.concatenate([self._slots.limits[self._slots.live], limits])
        free = self._most_blocks - self._allocator.blocks.num_only_lent
        return bool((-(-most // self._block_tokens)).sum() <= free)

    def forget(self) -> None:
        """Drops the curve until it is next computed."""
        if self.has_curve:
            self.has_curve, self._candidates, self._curve = False, {}, NOTHING
            self._steps = np.zeros(1)
            self._mean, self._variance = np.zeros((2, self._slots.num_slots, 1))

    def compute(self, head: list[Sequence]) -> None:
        """Computes the curve again for all slots, and the rows of `head`, the first waiting sequences."""
        self.has_curve = True
        live = np.flatnonzero(self._slots.live)
        running, waiting = self._running(live), self._waiting(head)
        self._steps = points(np.concatenate([running.ahead, waiting.ahead]))
        shape = (self._slots.num_slots, len(self._steps))
        self._mean, self._variance = np.zeros(shape), np.zeros(shape)
        (self._mean[live], self._variance[live]), self._curve = self._together(live, running, self._steps)
        rows = zip(*self._lives(waiting, self._steps), strict=True)
        self._candidates = {sequence.request_id: row for sequence, row in zip(head, rows, strict=True)}

    def peak_of_running(self) -> float:
        """The most blocks that the sequences which have a slot will use, whether or not there is a curve."""
        live = np.flatnonzero(self._slots.live)
        running = self._running(live)
        _, curve = self._together(live, running, points(running.ahead))
        return curve.peak() + self._num_reserved

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        assert not self._mean[~self._slots.live].any(), "an empty slot has a future"
        assert np.allclose(self._curve.mean, self._mean.sum(axis=0)), "the curve is not the sum of its rows"

    @property
    def peak_blocks(self) -> float:
        return self._curve.peak() + self._num_reserved

    def trial(self) -> Callable[[Sequence], bool]:
        """To be called with one waiting sequence after the other: reserves what it takes if that fits
        together with all that run and with what was reserved before, else answers False; while there is no
        curve, all fit.
        """
        if not self.has_curve:
            return lambda sequence: True
        curve, left, alone = self._curve, self._allocator.blocks.num_available, not self._slots.num_busy
        most = self._most_blocks - self._num_reserved

        def try_reserve(sequence: Sequence) -> bool:
            nonlocal curve, left, alone
            takes = self._allocator.seating(sequence)
            if takes.blocks_now > left:
                return False
            tried = curve.with_one_more(self._life(sequence), takes.num_shared)
            # these the curve has twice, in the other's row and as shared ones, until it is computed again
            if tried.peak(ADMITTED) - takes.num_held_once > most and not alone:
                return False
            curve, left, alone = tried, left - takes.blocks_now, False
            return True

        return try_reserve

    @property
    def _num_reserved(self) -> int:
        """Blocks that only sequences hold which are about to move here. They are in no row, and not in the
        curve: it is not computed again when such a sequence comes or goes.
        """
        reserved = self._slots.reserved.values()
        return sum(self._allocator.blocks.num_held_once(each.blocks.tolist()) for each in reserved)

    # --- beliefs

    def reserve(self, sequence: Sequence) -> int:
        """The median of the tokens that it will hold at its end."""
        return sequence.num_prompt_tokens + round(float(self._beliefs([sequence])[0, MEDIAN]))

    def rest_tokens(self, sequences: list[Sequence]) -> Array:
        """[n] the mean number of tokens that are still to come. The sequences must all run or all wait."""
        if not sequences or sequences[0].slot == NO_SLOT:
            stands = self._waiting(sequences)
        else:
            stands = self._running(np.array([sequence.slot for sequence in sequences]))
        means: Array = (stands.ahead * stands.weights).sum(axis=1)
        return means

    def _beliefs(self, sequences: list[Sequence]) -> Array:
        max_tokens = np.array([sequence.request.sampling.max_tokens for sequence in sequences], np.float64)
        predictions = [None if self._sampled else sequence.prediction for sequence in sequences]
        return self.lengths.believed(predictions, max_tokens)

    def _running(self, live: NDArray[np.intp]) -> _Stands:
        table = self._slots
        tokens = table.planned[live].astype(np.float64)
        made, most = tokens - table.prompts[live], table.limits[live] - tokens
        held = (table.capacity[live] // self._block_tokens).astype(np.float64)
        return self._stands(tokens, held, self._believed[live], made, most)

    def _waiting(self, sequences: list[Sequence]) -> _Stands:
        tokens = np.array([len(sequence.tokens) for sequence in sequences], np.float64)
        made = tokens - np.array([sequence.num_prompt_tokens for sequence in sequences], np.float64)
        most = np.array([self._allocator.limit(sequence) for sequence in sequences], np.float64) - tokens
        held = np.ceil((tokens + 1) / self._block_tokens)
        return self._stands(tokens, held, self._beliefs(sequences), made, most)

    def _stands(self, tokens: Array, held: Array, believed: Array, made: Array, most: Array) -> _Stands:
        """Of n sequences that have `made` [n] output tokens and may have `most` [n] more."""
        if self._sampled:
            believed = self.lengths.sampled(made, made + most)
        return _Stands(tokens, held, *rest(believed, made, most))

    def _life(self, sequence: Sequence) -> Life:
        """The life of a sequence that waits, or has just got its slot."""
        known = self._candidates.get(sequence.request_id)
        if known is not None:
            return known
        alive, blocks = self._lives(self._waiting([sequence]), self._steps)
        return alive[0], blocks[0]

    def _lives(self, stands: _Stands, steps: Array) -> Life:
        return lives(stands.held, stands.tokens, stands.ahead, stands.weights, steps, self._block_tokens)

    def _together(self, live: NDArray[np.intp], running: _Stands, steps: Array) -> tuple[Row, Curve]:
        """The rows [n, points] of the sequences in the slots `live` [n], and their curve."""
        alive, blocks = self._lives(running, steps)
        num_used = self._allocator.blocks.num_used - self._num_reserved
        num_held = float(running.held.sum())
        shared = self._allocator.shared_blocks(live) if num_held > num_used else np.zeros(len(live))
        mean, variance = in_use(alive, blocks - shared[:, None])
        num_shared = float(num_used - num_held + shared.sum())
        curve = Curve(mean.sum(axis=0), variance.sum(axis=0), num_shared, none_alive(alive[shared > 0]))
        return (mean, variance), curve
