"""When the stages of the OpenVINO engine's steps come: one step after the other, or each launched while the
one before it is computed.

Owns the steps that are not collected. Called by the OpenVINO engine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import openvino as ov
import torch

from python_backends.engine.launched_steps import LaunchedSteps
from python_backends.engine.openvino.inputs import StepInputs
from python_backends.engine.openvino.stages import Stages, Step
from python_backends.engine.slots.slot_state import SlotState
from python_backends.nouns.step import Admit, StepOutput, StepPlan


class OneByOne:
    """`launch` returns when the tokens of its step are booked. The thread that calls it computes too."""

    def __init__(self, state: SlotState, inputs: Sequence[StepInputs]) -> None:
        self._state = state
        self._stages = Stages(state, inputs, _infer)
        self._newest: Step | None = None
        self._outputs: deque[StepOutput] = deque()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        before, stages = _of_run(self._newest, plan), self._stages
        self._state.apply(plan.operations)
        step = self._newest = stages.fill(plan, before)
        stages.read_sampling(step, before)
        stages.start(step, before)
        stages.choose(step)
        self._outputs.append(stages.book(step))

    def collect(self) -> StepOutput:
        return self._outputs.popleft()

    def close(self) -> None:
        """Nothing is computed now."""


class OneAhead:
    """`launch` returns when its step has started: OpenVINO's threads compute it while the loop goes on. There
    are two infer requests: one is computed while the inputs of the other are filled. Faster where the loop
    has a processor of its own (docs/notebook/token_gap.md).
    """

    def __init__(self, state: SlotState, inputs: Sequence[StepInputs], launched_steps: LaunchedSteps) -> None:
        self._state = state
        self._stages = Stages(state, inputs, ov.InferRequest.start_async)
        self._launched_steps = launched_steps
        self._newest: Step | None = None
        self._outputs: deque[StepOutput] = deque()
        self._computed_s = 0.0  # when a step was computed last
        for each in inputs:
            each.request.set_callback(self._computed, None)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """The step starts as soon as the tokens of the running one are chosen. What the start needs is made
        ready before they are, and all else is done after it.
        """
        before, running = _of_run(self._newest, plan), self._running
        self._state.apply_blocks(plan.operations)
        step = self._stages.fill(plan, before)
        if running is not None:
            self._choose(running)
        if before is None:
            self._show_last_tokens(running, plan)
        self._launched_steps.launched()
        self._stages.start(step, before)
        if running is not None:
            self._outputs.append(self._stages.book(running))
        self._state.apply_lives(plan.operations)
        self._stages.read_sampling(step, before)
        self._newest = step

    @torch.inference_mode()
    def collect(self) -> StepOutput:
        running = self._running
        if self._outputs or running is None:
            return self._outputs.popleft()
        self._choose(running)
        return self._stages.book(running)

    def close(self) -> None:
        if self._running is not None:
            self._running.request.wait()

    @property
    def _running(self) -> Step | None:
        """The newest step, unless it has been collected. All others are booked."""
        return self._newest if self._newest is not None and self._newest.output is None else None

    def _show_last_tokens(self, running: Step | None, plan: StepPlan) -> None:
        """Of the running step, which are not booked, and of requests that `plan` admits: one that has moved
        here may decode at once.
        """
        if running is not None:
            self._state.show_last_tokens(running.slots.numpy(), running.tokens)
        admits = [each for each in plan.operations if isinstance(each, Admit) and len(each.tokens)]
        slots, tokens = [each.slot for each in admits], [each.tokens[-1] for each in admits]
        self._state.show_last_tokens(np.array(slots, np.int64), np.array(tokens, np.int64))

    def _choose(self, running: Step) -> None:
        """Waits until it is computed, too."""
        with self._launched_steps.awaited():
            running.request.wait()
        self._stages.choose(running, late_s=time.monotonic() - self._computed_s)

    def _computed(self, _: object) -> None:
        """Called by a thread of OpenVINO's."""
        self._computed_s = time.monotonic()
        self._launched_steps.ended()


def _infer(request: ov.InferRequest) -> None:
    """The logits are read where they lie; a copy takes 4 % of a step of 16 rows (shape S)."""
    request.infer(share_outputs=True)


def _of_run(step: Step | None, plan: StepPlan) -> Step | None:
    """`step` if it is of the same run as `plan`."""
    return step if step is not None and step.plan.run == plan.run else None
