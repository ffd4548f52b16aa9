"""The loop of one instance over a slot scheduler and an engine: `turn` is one step of it.

Owns the slot scheduler and the engine; knows nothing of clients. `__main__.py` is its process, `build.py`
makes its parts. Tested in tests/pure/test_instance.py.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from python_backends.engine.protocol import Engine
from python_backends.handover.moves import Moves
from python_backends.instance.adapters import InstanceAdapters
from python_backends.instance.heartbeat import HEARTBEAT_S, Heartbeat
from python_backends.instance.lead import Lead
from python_backends.instance.training import Training
from python_backends.nouns.messages import Cancel, Failed, FromInstance, Predicted, Submit, ToInstance
from python_backends.nouns.moves import AbortMove, MoveOut, Reserve, Resume
from python_backends.nouns.step import StepOutput, StepPlan
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.scheduling.training_budget import GOAL, Lateness, slack_s
from python_backends.wires.sessions import NewSession

log = logging.getLogger("gapless.instance")


class Link(Protocol):
    """Where requests come from and tokens go: `wires.InstanceEnd`, or the
    caller that drives the loop without a server.
    """

    def receive(self, timeout_s: float) -> list[Any]: ...

    def publish(self, messages: Sequence[FromInstance]) -> None: ...


class Instance:
    """The loop. `turn` is one round of it: take, plan, launch, collect, apply, publish. Where adapters are
    trained, pieces of training stand before the launch, and a window of it may be in the step.

    `steps_ahead` steps are launched before the oldest is read, so the engine has the next plan when it has
    done with one. The next plan is made as late as that allows: what comes in while a step runs is in the one
    after it.
    """

    def __init__(
        self,
        scheduler: SlotScheduler,
        engine: Engine,
        link: Link,
        beat: Callable[[], None],
        steps_ahead: int = 0,
        moves: Moves | None = None,
    ) -> None:
        """`moves`: None if no request moves from here to another instance, or from there."""
        self.scheduler = scheduler
        self.engine = engine
        self.link = link
        self._moves = moves
        self._adapters: InstanceAdapters | None = None
        self._training: Training | None = None
        self._lateness = Lateness()
        self._heartbeat = Heartbeat(beat)
        self._steps_ahead = 0 if engine.plans_steps else steps_ahead
        self._launched: deque[StepPlan] = deque()
        self._was_idle = True
        # number of the last step that began when there had been nothing to do: no gap stands before it
        self._first_after_idle = -1
        self._running_since_s = 0.0  # the oldest launched step
        self._num_empty_turns = 0  # the latest turns, in which nothing was planned or collected
        self._last_submit = 0  # the number of the last Submit in this session
        self._step_time = scheduler.outlook.step_time
        self._lead = Lead()

    def serve_adapters(self, adapters: InstanceAdapters | None) -> None:
        """Before the first turn. None: there are none, or the engine keeps them by itself."""
        self._adapters = adapters

    def train(self, training: Training) -> None:
        """From now on, the jobs of `training` are trained in the time that serving leaves."""
        self._training = training

    def turn(self) -> None:
        self._take_inbox()
        if self._adapters is not None:
            self._publish(self._adapters.step())
        began_s = time.monotonic()
        plan = self.scheduler.plan()
        if self._training is not None and self._training.has_work:
            planned_s = time.monotonic() - began_s
            plan = self._train(self._training, plan)
            began_s = time.monotonic() - planned_s  # as if training had taken no time
        self._num_empty_turns = 0 if plan or self._launched else self._num_empty_turns + 1
        self._launch(plan, began_s)
        if self._is_output_due(plan):
            plan, output = self._collect()
            tokens = self.scheduler.apply(plan, output)
            self._publish([*([tokens] if len(tokens.tokens) else []), *self.scheduler.take_failed()])
            if self._training is not None and plan.window is not None:
                self._training.computed(plan.window)
        self._beat_if_due()

    def _train(self, training: Training, plan: StepPlan | None) -> StepPlan | None:
        """Before `plan` is launched, for as long as those who wait for tokens do not notice. A request that
        waits for a slot or for memory gets it sooner without training. Returns the plan, with a window if one
        comes next and fits.
        """
        times, tpot_s = self._step_time, training.tpot_s
        self._lateness.step_begins(plan, time.monotonic(), GOAL * tpot_s)
        seconds = slack_s(plan, times, tpot_s, training.idle_s, self._lateness.seconds)
        if plan is not None and self.scheduler.num_waiting:
            seconds = 0.0
        has_worked = training.work(seconds, plan)
        if plan is None:
            return None
        if has_worked:
            self._first_after_idle, self._was_idle = plan.number, False
        window = training.window(plan)
        return plan if window is None else plan.with_window(window)

    def _launch(self, plan: StepPlan | None, began_s: float) -> None:
        """Publishes which requests got a slot, in case that the launch ends this process, and launches
        `plan`, if there is one, whose planning began at `began_s`. There is time to look ahead while the
        device computes.
        """
        self._publish(self.scheduler.take_started())
        if plan is not None:
            self._launch_step(plan)
            if self._steps_ahead:
                self._lead.observe(len(plan.tokens) > 0, time.monotonic() - began_s)
        self.scheduler.refresh()

    def _launch_step(self, plan: StepPlan) -> None:
        if not self._launched:
            self._running_since_s = time.monotonic()
        self._launched.append(plan)
        if self._was_idle:
            self._first_after_idle, self._was_idle = plan.number, False
        self.engine.launch(plan)

    def _is_output_due(self, plan: StepPlan | None) -> bool:
        """Whether the oldest launched step is read now: `steps_ahead` steps were
        launched after it, or there is no new plan.
        """
        return bool(self._launched) and (plan is None or len(self._launched) > self._steps_ahead)

    def _collect(self) -> tuple[StepPlan, StepOutput]:
        """The plan and output of the oldest launched step. Records its time."""
        output = self.engine.collect()
        plan, now_s = self._launched.popleft(), time.monotonic()
        if plan.number != self._first_after_idle and not self.engine.plans_steps:
            self._heartbeat.gaps.observe(output.gap_s)
        # busy_s leaves out how late we read it
        took_s = output.busy_s if self._steps_ahead else now_s - self._running_since_s
        self._step_time.observe(plan, took_s)
        self._running_since_s = now_s
        return plan, output

    def _take_inbox(self) -> None:
        """Takes the messages that have come, and those that come before it is time for the next plan."""
        while True:
            if self._moves is not None and self._moves.is_active:
                self._publish(self._moves.step())
            wait_s = self._patience_s()
            news = self.link.receive(wait_s)
            for message in news:
                self._take(message)
            if not wait_s or self._has_adapter_news or not (news or self._has_move_news):
                return
            self._num_empty_turns = 0

    def _patience_s(self) -> float:
        # a single empty turn may be one in which a sequence was evicted
        if self.scheduler.is_idle or (self._num_empty_turns > 1 and self._only_waits):
            self._was_idle = True
            if self._training is not None and self._training.has_work:
                return self._training.patience_s
            return HEARTBEAT_S
        if not self._launched:
            return 0.0
        with_prompts = self.scheduler.num_waiting > 0 or len(self._launched[-1].tokens) > 0
        least_s = self._step_time.least_s(self._launched[0]) - self._lead.seconds(with_prompts)
        return max(0.0, self._running_since_s + least_s - time.monotonic())

    @property
    def _has_move_news(self) -> bool:
        """Whether there is news of a move, which the loop takes while it waits."""
        return self._moves is not None and self._moves.has_news

    @property
    def _has_adapter_news(self) -> bool:
        """Whether there is news of adapters, which the turn takes after its messages."""
        return self._adapters is not None and self._adapters.has_news

    @property
    def _only_waits(self) -> bool:
        """Whether there is nothing to compute for the requests that are here, or about to come, until a move
        has gone on or an adapter is loaded.
        """
        is_moving = self._moves is not None and self._moves.is_active
        is_loading = self._adapters is not None and self._adapters.is_loading
        return (is_moving or is_loading) and not self._launched

    def _take(self, message: ToInstance | NewSession) -> None:
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Predicted):
            self.scheduler.predict(message.request_id, message.prediction)
        elif isinstance(message, Cancel):
            self.scheduler.cancel(message.request_id, message.request_epoch)
        elif isinstance(message, NewSession):
            self._forget_all()
        elif self._moves is not None and isinstance(message, Reserve | MoveOut | AbortMove | Resume):
            self._publish(self._moves.take(message))

    def _forget_all(self) -> None:
        if self._moves is not None:
            self._moves.new_session()
        self.scheduler.cancel_all()
        self._last_submit = 0

    def _submit(self, message: Submit) -> None:
        try:
            self._last_submit = message.number
            self.scheduler.submit(message.request, message.delivered, message.request_epoch, message.age_s)
        except ValueError as error:
            self._publish([Failed(message.request.request_id, str(error), message.request_epoch)])

    def _publish(self, messages: Sequence[FromInstance]) -> None:
        """Sends `messages`, in order; with none, nothing."""
        if messages:
            self.link.publish(messages)

    def _beat_if_due(self) -> None:
        is_training = self._training is not None and self._training.has_work
        if not self._heartbeat.is_due(self.scheduler.is_idle and not is_training):
            return
        moved_bytes = self._moves.take_sent_bytes() if self._moves is not None else 0
        training = self._training.take_report() if self._training is not None else None
        load = self.scheduler.load().changed(
            last_submit=self._last_submit, moved_bytes=moved_bytes, training=training
        )
        self._publish([self._heartbeat.beat(load)])
        if self.scheduler.is_idle:
            self.scheduler.check_integrity()
