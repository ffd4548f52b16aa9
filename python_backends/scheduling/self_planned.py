"""The slot scheduler over an engine that plans its own steps: we decide only which sequences are admitted.

The engine never has more sequences than slots, and none without the blocks reserved for it here, so its own
queue stays empty and the order stays our decision. Plans have operations and no spans. After its sequence has
ended or was cancelled, a slot is not free before the engine reports its release. Called by the instance loop
like its parent class.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from python_backends.nouns.request import QUANTILE_LEVELS, Ids, ModelLimits
from python_backends.nouns.step import (
    GatheredOutput,
    Release,
    Started,
    StepOutput,
    StepPlan,
    Tokens,
)
from python_backends.scheduling.policies.fcfs import in_order
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.allocator import Allocator
from python_backends.scheduling.state.sequence import NO_BLOCKS, Sequence
from python_backends.scheduling.state.view import Reserve, View
from python_backends.settings import SchedulingSettings

LIKELY = QUANTILE_LEVELS.index(0.9)
NONE = np.zeros(0, np.int32)
NO_SPANS: dict[str, Any] = dict.fromkeys(
    ("slots", "slot_generations", "first_starts", "lengths", "tokens"), NONE
)
NO_SPANS |= {"num_decodes": 0, "samples": np.zeros(0, np.bool_)}
NO_TOKENS = Tokens(np.zeros(0, np.int64), NONE, NONE, NONE, np.zeros(0, np.uint8))


def reserve_likely(sequence: Sequence) -> int:
    """What an answer seldom exceeds, where a prediction has come. For engines
    that pause requests when too much was admitted.
    """
    if sequence.prediction is None:
        return sequence.request.max_total_tokens
    likely = int(np.ceil(sequence.prediction.quantiles[LIKELY]))
    return min(sequence.num_prompt_tokens + likely, sequence.request.max_total_tokens)


class CountingAllocator(Allocator):
    """Counts blocks that the engine owns: a sequence holds ceil(tokens at its end
    / block_tokens) until the engine releases it.
    """

    def __init__(self, limits: ModelLimits, reserve: Reserve, grows_by_need: bool = False) -> None:
        super().__init__(limits, reserve, grows_by_need)
        self._leaving: dict[Release, Ids] = {}

    def view(self) -> View:
        view, num_leaving = super().view(), sum(map(len, self._leaving.values()))
        return replace(view, num_blocks=view.num_blocks - num_leaving)

    def seat(self, sequence: Sequence) -> int:
        sequence.reserved_blocks = self._reservation(sequence)
        sequence.blocks = np.array(self.blocks.allocate(sequence.reserved_blocks), np.int32)
        self.slots.seat(sequence, len(sequence.tokens), self.limit(sequence))
        self._started.append(Started(sequence.request_id, sequence.request_epoch, 0))
        self._operations.append(self._admission(sequence))
        return 0

    def unseat(self, sequence: Sequence) -> None:
        """Takes `sequence` out of its slot. The slot and its blocks are free when
        the engine has released them, see `let_go`.
        """
        release = Release(sequence.slot, int(self.slots.generations[sequence.slot]))
        self.slots.vacate(sequence)
        self._operations.append(release)
        self._leaving[release] = sequence.blocks
        sequence.blocks, sequence.reserved_blocks = NO_BLOCKS, 0

    def let_go(self, release: Release) -> None:
        """The engine holds nothing of this slot generation any more."""
        blocks = self._leaving.pop(release, None)
        if blocks is not None:
            self.blocks.drop(blocks)
            self.slots.free(release.slot)

    def check_integrity(self) -> None:
        running = self.slots.running()
        self.blocks.check_integrity([*(sequence.blocks for sequence in running), *self._leaving.values()])
        assert len(running) == int(self.slots.live.sum()), "live slots differ from running sequences"
        assert len(running) + len(self._leaving) == self.slots.num_busy, (
            "a slot is neither running nor leaving nor free"
        )


class SelfPlannedScheduler(SlotScheduler):
    allocator = CountingAllocator
    _allocator: CountingAllocator

    def __init__(
        self, limits: ModelLimits, token_budget: int, settings: SchedulingSettings, reserve: Reserve
    ) -> None:
        super().__init__(limits, token_budget, settings, reserve)
        # keep the order, but reserve all blocks at admission: the engine owns them
        if self.policy.looks_ahead:
            self.policy = replace(self.policy, select=in_order, looks_ahead=False)
            self._admission.follow(self.policy)

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not self.slots.num_busy

    def plan(self) -> StepPlan | None:
        """A plan with the operations since the last one; None if no slot
        is busy or enough plans are in flight.
        """
        if self._in_flight >= self.policy.max_in_flight:
            return None
        self.refresh()
        self._admit()
        if not self.slots.num_busy:
            return None
        self._in_flight += 1
        return StepPlan(self._plans.next_number(), self._allocator.take_operations(), **NO_SPANS)

    def apply(self, plan: StepPlan, output: StepOutput) -> Tokens:
        """Books the tokens, failures and releases that the engine has
        reported, whichever step they belong to.
        """
        assert isinstance(output, GatheredOutput)
        self._in_flight -= 1
        tokens = self._book_all(output) if len(output.slots) else NO_TOKENS
        for failure in output.failures:
            self._fail(failure)
        for release in output.released:
            self._allocator.let_go(release)
        return tokens

    def _book_all(self, output: GatheredOutput) -> Tokens:
        table = self.slots
        tokens, ended = self._booking.book_current(output.slots, output.slot_generations, output)
        self._finish(ended)
        table.follow(output.slots)
        return tokens
