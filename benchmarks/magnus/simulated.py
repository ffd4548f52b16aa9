"""An engine for `magnus` with given step times, whose answers are as long as the model's were.

A step takes a fixed time, a time for each row that decodes, and a time for each prompt token. So the policies
can be compared on other hardware: a device that reads all weights at each step, for any number of rows, has a
large fixed part. Time is virtual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.magnus.requests import Ask
from python_backends.nouns.request import Finish, ModelLimits
from python_backends.nouns.step import Admit, StepOutput, StepPlan

TOKEN = 1


class SimulatedEngine:
    plans_steps = False

    def __init__(self, limits: ModelLimits, lengths: Mapping[bytes, int], step_ms: Sequence[float]) -> None:
        """`lengths` are by the bytes of the prompt; `step_ms`: fixed, for a row, for a prompt token."""
        self.limits = limits
        self._lengths = lengths
        self._fixed_ms, self._row_ms, self._token_ms = step_ms
        self._now_s = 0.0
        self._left: NDArray[np.int64] = np.zeros(limits.num_slots, np.int64)  # tokens to come, by slot
        self._full: NDArray[np.bool_] = np.zeros(limits.num_slots, np.bool_)  # the answer is cut
        self._output = StepOutput(0, np.zeros(0, np.int32), np.zeros(0, np.uint8))

    def now(self) -> float:
        """Returns the seconds of its own clock."""
        return self._now_s

    def launch(self, plan: StepPlan) -> None:
        for operation in plan.operations:
            if isinstance(operation, Admit):
                length = self._lengths[operation.tokens.tobytes()]
                self._left[operation.slot] = length
                self._full[operation.slot] = length == operation.sampling.max_tokens
        rows_ms = self._row_ms * plan.num_decodes
        self._now_s += (self._fixed_ms + rows_ms + self._token_ms * len(plan.tokens)) / 1e3
        slots = plan.slots[plan.samples]
        ends = self._left[slots] == 1
        live = self._left[slots] > 0
        self._left[slots] -= live
        finishes = np.where(self._full[slots], int(Finish.LENGTH), int(Finish.STOP)) * ends
        self._output = StepOutput(plan.number, (live * TOKEN).astype(np.int32), finishes.astype(np.uint8))

    def collect(self) -> StepOutput:
        return self._output

    def close(self) -> None:
        pass


def lengths_by_prompt(asked: Sequence[Ask], lengths: NDArray[np.int64]) -> dict[bytes, int]:
    return {ask.prompt.tobytes(): int(length) for ask, length in zip(asked, lengths, strict=True)}
