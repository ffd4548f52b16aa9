"""The predictions of an instance: the order of the waiting sequences, and which of them fit into the future
memory.

Brings together step time, future memory and predicted order. Computes the latter two again at most every 50
ms, best while the device computes. Owned by the slot scheduler. For policies that don't look ahead it keeps
the history of lengths and nothing else, and while slots and memory suffice for all requests it computes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from python_backends.nouns.request import Ids
from python_backends.scheduling.lengths.belief import Array
from python_backends.scheduling.lengths.future_memory import FutureMemory
from python_backends.scheduling.lengths.predicted_order import HEAD, PredictedOrder
from python_backends.scheduling.policies.policy import Policy
from python_backends.scheduling.state.allocator import Allocator
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.step_time import StepTime
from python_backends.settings import SchedulingSettings

REFRESHED_S = 0.05
LONGEST_STEP_S = 2.0  # of a step in which only prompts are computed: who comes meanwhile waits for its end
UNSEEN_STEP_S = 0.02  # assumed time of a step before any was measured


class Outlook:
    def __init__(
        self,
        policy: Policy,
        settings: SchedulingSettings,
        allocator: Allocator,
        clock: Callable[[], float],
    ) -> None:
        self.step_time = StepTime()
        self._max_step_s = settings.max_step_ms / 1000
        self.future = FutureMemory(allocator, policy.sampled)
        self.order = (
            PredictedOrder(policy.rank, settings, self.future.rest_tokens, clock) if policy.rank else None
        )
        self._is_used = policy.looks_ahead or self.order is not None
        self._slots = allocator.slots
        self._clock = clock
        self._refreshed_s = -math.inf

    @property
    def step_s(self) -> float:
        """What a step takes in which all running sequences decode; 0 before any step was measured."""
        live = self._slots.live
        return self.step_time.seconds(int(np.count_nonzero(live)), int(self._slots.planned[live].sum()))

    def waited_s(self, sequence: Sequence) -> float:
        """Since its request came to its first instance."""
        return self._clock() - sequence.arrived_s

    def seated_s(self, sequence: Sequence) -> float:
        """Since it got its slot."""
        return self._clock() - sequence.got_slot_s

    def predicted(self, sequence: Sequence) -> None:
        """A prediction has come for `sequence`."""
        self.future.believe(sequence)
        if self.order is not None:
            self.order.expect(sequence)

    def forget_if_old(self) -> bool:
        """Drops the curve once it is older than REFRESHED_S, and an order whose head is used up. Called while
        requests do not compete for anything. True: others come to the head of the waiting, or a curve is gone
        by which some may have been refused.
        """
        is_old = self._clock() >= self._refreshed_s + REFRESHED_S
        drops_curve = self.future.has_curve and is_old
        if is_old or not self.future.has_curve:
            self.future.forget()
            self._refreshed_s = -math.inf
        drops_order = self.order is not None and self.order.is_used_up
        if self.order is not None and drops_order:
            self.order.forget()
        return drops_curve or drops_order

    def refresh(
        self,
        slots_are_scarce: bool,
        first_waiting: Callable[[int], list[Sequence]],
        can_go: Callable[[Sequence], bool],
    ) -> bool:
        """Computes everything again if that is due: for all slots, and for as many of the waiting as a step
        may look at, those that `can_go` in any case. False: it was not.
        """
        used_up = self.order is not None and self.order.is_used_up
        if not self._is_used or (self._clock() < self._refreshed_s + REFRESHED_S and not used_up):
            return False
        self._refreshed_s = self._clock()
        num_head = HEAD + self._slots.num_free
        if self.order is not None:
            usual_tokens = self.future.lengths.usual_tokens
            self.order.sort(num_head, usual_tokens, self._seconds, slots_are_scarce, can_go)
        self.future.compute(first_waiting(num_head))
        return True

    def prefill_s(self, decodes: Ids) -> float:
        """What prompts may add to the step that is planned, besides the slots that decode in it, which wait
        for its end: up to `max_step_ms`, or to twice what it takes without prompts if that is longer. Where
        none decodes, up to LONGEST_STEP_S.
        """
        if not len(decodes):
            return max(LONGEST_STEP_S, self._max_step_s)
        step_s = self.step_time.seconds(len(decodes), int(self._slots.planned[decodes].sum()))
        return max(self._max_step_s - step_s, step_s)

    def _seconds(self, prompts: Array, tokens: Array) -> tuple[Array, Array]:
        """What prefills and answers of this many tokens will take, at the pace of now."""
        step_s = self.step_s or UNSEEN_STEP_S
        return self.step_time.prompts_s(prompts) + step_s, tokens * step_s
