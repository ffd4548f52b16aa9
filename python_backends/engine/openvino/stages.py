"""The stages of a step of the OpenVINO engine: its inputs are filled, it is computed, its tokens are chosen,
and they are booked.

The inputs of the infer requests take turns. Owns the times of the steps. Which stage comes when is
decided by `launching.py`, which calls this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.openvino.inputs import StepInputs
from python_backends.engine.slots.log_probs import LogProbRows, log_probs, row_log_probs
from python_backends.engine.slots.numbers import are_numbers, fail_others, have_lesser
from python_backends.engine.slots.sampler import GREEDY, SamplingRows, sample
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.step_timer import Seconds, StepTimer
from python_backends.nouns.request import Finish, Floats
from python_backends.nouns.step import RowLogProbs, StepOutput, StepPlan

Logits = NDArray[np.float32]


@dataclass(slots=True)
class Step:
    """A step that is launched. The stages set what is not set at first."""

    plan: StepPlan
    inputs: StepInputs
    slots: Tensor  # [sampled]
    rows: SamplingRows = field(init=False)  # how its tokens are chosen
    logits: Logits = field(init=False)  # [sampled, vocabulary] until its infer request starts again
    tokens: NDArray[np.int64] = field(init=False)  # [sampled]
    times: Seconds = field(init=False)
    states: Floats | None = None  # [read, hidden]; None: there are none
    output: StepOutput | None = None  # None: its tokens are not booked

    @property
    def request(self) -> ov.InferRequest:
        return self.inputs.request


class Stages:
    """`before` is the step launched before this one if both are of one run, so that the same rows go on; None
    if other rows are in this step.
    """

    def __init__(
        self,
        state: SlotState,
        inputs: Sequence[StepInputs],
        compute: Callable[[ov.InferRequest], object],
    ) -> None:
        """`compute` may return before the step is computed."""
        self._state = state
        self._compute = compute
        self._inputs = inputs
        self._turns = cycle(inputs)
        self._timer = StepTimer()

    def fill(self, plan: StepPlan, before: Step | None) -> Step:
        """A step with the inputs of `plan`, except for the tokens of its decode rows. The block table is as
        the operations of the plan leave it.
        """
        if plan.operations:
            for each in self._inputs:
                each.forget_blocks()
        inputs = next(self._turns)
        inputs.fill(plan, self._state.table.numpy())
        if before is not None:
            return Step(plan, inputs, before.slots)
        self._state.book_run()
        return Step(plan, inputs, torch.from_numpy(plan.slots[plan.samples].astype(np.int64)))

    def start(self, step: Step, before: Step | None) -> None:
        """Fills the tokens of the decode rows and has the step computed. `before` has its tokens, or
        `last_tokens` of the slot state are those of the decode rows.
        """
        if before is not None:
            step.inputs.put_tokens(before.tokens)
        else:
            plan = step.plan
            step.inputs.put_tokens(self._state.last_tokens[plan.slots[: plan.num_decodes]])
        self._timer.begin()
        self._compute(step.request)

    def read_sampling(self, step: Step, before: Step | None) -> None:
        """Finds out how the tokens are to be chosen: those of all steps before are booked, and the operations
        of the plan are applied.
        """
        is_greedy = before is not None and before.rows is GREEDY
        step.rows = GREEDY if is_greedy else self._state.sampling_rows(step.slots, step.plan)

    def choose(self, step: Step, late_s: float = 0.0) -> None:
        """Chooses the tokens of a step that was computed `late_s` ago."""
        step.logits = logits = step.request.get_output_tensor(0).data[: len(step.slots)]
        step.states = _states(step)
        is_greedy = step.rows is GREEDY
        step.tokens = logits.argmax(-1) if is_greedy else sample(torch.from_numpy(logits), step.rows).numpy()
        step.times = self._timer.end(time.monotonic() - late_s)()

    def book(self, step: Step) -> StepOutput:
        """Appends the chosen tokens to their slots."""
        scores = None
        if step.rows is GREEDY:
            tokens, finishes = self._state.append_plain(step.plan.run, step.slots, step.tokens)
            if not have_lesser(step.logits, step.tokens):
                good = are_numbers(torch.from_numpy(step.logits)).numpy()
                finishes = np.where(good, finishes, int(Finish.ERROR))
        else:
            logits, chosen = torch.from_numpy(step.logits), torch.from_numpy(step.tokens)
            scores = _scores(logits, chosen, step.rows.asks)
            result = fail_others(self._state.append(step.slots, chosen), logits, chosen, step.rows)
            tokens, finishes = result.numpy()
        step.output = StepOutput(
            step.plan.number,
            tokens.astype(np.int32),
            finishes.astype(np.uint8),
            scores,
            *step.times,
            step.states,
        )
        return step.output


def _states(step: Step) -> Floats | None:
    """A copy: the next step is computed into the same memory."""
    read = step.plan.read
    if not len(read) or len(step.request.model_outputs) == 1:
        return None
    states: Floats = step.request.get_output_tensor(1).data[read]
    return states


def _scores(logits: Tensor, tokens: Tensor, asks: LogProbRows | None) -> RowLogProbs | None:
    return None if asks is None else row_log_probs(log_probs(logits, tokens, asks).numpy(), asks.host_rows)
