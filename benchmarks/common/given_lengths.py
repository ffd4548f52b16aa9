"""An engine that takes no time: it makes as many tokens as each answer has, all with the same id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Finish
from python_backends.nouns.step import Admit, StepOutput, StepPlan
from python_backends.scheduling.slot_scheduler import SlotScheduler


class GivenLengths:
    def __init__(self, scheduler: SlotScheduler, lengths: NDArray[np.int64]) -> None:
        """`lengths` by request id."""
        self._scheduler = scheduler
        self._lengths = lengths
        self._left = np.zeros(scheduler.limits.num_slots, np.int64)

    def launch(self, plan: StepPlan) -> None:
        for operation in plan.operations:
            if isinstance(operation, Admit):
                number = self._scheduler.slots.request_ids[operation.slot]
                self._left[operation.slot] = self._lengths[number] - operation.num_output_tokens

    def collect(self, plan: StepPlan) -> StepOutput:
        slots = plan.slots[plan.samples]
        self._left[slots] -= 1
        finishes = np.where(self._left[slots] == 0, Finish.STOP, Finish.RUNNING).astype(np.uint8)
        return StepOutput(plan.number, np.ones(len(slots), np.int32), finishes)
