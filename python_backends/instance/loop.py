"""The loop of one instance over a slot scheduler and an engine: `turn` is one step of it.

Owns the slot scheduler and the engine; knows nothing of clients. `__main__.py` is its process, `build.py`
makes its parts.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from python_backends.engine.protocol import Engine
from python_backends.instance.adapters import InstanceAdapters
from python_backends.instance.guided_requests import GuidedRequests
from python_backends.instance.heartbeat import HEARTBEAT_S, Heartbeat
from python_backends.instance.late_tokens import LateTokens
from python_backends.instance.lead import Lead
from python_backends.instance.spare_time import SpareTime
from python_backends.moving.moves import Moves
from python_backends.nouns.messages import Cancel, Failed, FromInstance, Predicted, Submit, ToInstance
from python_backends.nouns.moves import AbortMove, MoveOut, Refused, Reserve, Resume
from python_backends.nouns.step import StepOutput, StepPlan
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.wires.sessions import NewSession

log = logging.getLogger("gapless.instance")


class Link(Protocol):
    """Where requests come from and tokens go: `wires.sessions.InstanceEnd`, or the
    caller that drives the loop without a server.
    """

    def receive(self, timeout_s: float) -> list[Any]: ...

    def publish(self, messages: Sequence[FromInstance]) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What not every instance has."""

    moves: Moves | None = None  # None: no request moves from here to another instance, or from there
    adapters: InstanceAdapters | None = None  # None: there are none, or the engine keeps them by itself
    guided: GuidedRequests = field(default_factory=GuidedRequests)
    spare_time: SpareTime = field(default_factory=SpareTime)


class Instance:
    """The loop. `turn` is one round of it: inbox, plan, spare time, launch, collect, publish.

    `steps_ahead` steps are launched before the oldest is read, so the engine has the next plan when it has
    done with one. The next plan is made as late as that allows: what comes in while a step runs is in the one
    after it.
    """

    def __init__(
        self,
        scheduler: SlotScheduler,
        engine: Engine,
        link: Link,
        beat: Callable[[float], None],
        steps_ahead: int = 0,
        parts: Parts | None = None,
    ) -> None:
        """`beat` is told the seconds of the longest of the latest steps."""
        self.scheduler = scheduler
        self.engine = engine
        self.link = link
        parts = parts or Parts()
        self._moves, self._adapters, self._spare_time = parts.moves, parts.adapters, parts.spare_time
        self._guided = parts.guided
        scheduler.guides.wait_for(self._guided.is_ready)
        self._step_time = scheduler.outlook.step_time
        # at first, of a row that decodes, as the warm-up measured it
        self._heartbeat = Heartbeat(beat, self._step_time.seconds(1, 0))
        self._steps_ahead = 0 if engine.plans_steps else steps_ahead
        self._launched: deque[StepPlan] = deque()
        self._was_idle = True
        # number of the last step that began when there had been nothing to do: no gap stands before it
        self._first_after_idle = -1
        self._running_since_s = 0.0  # the oldest launched step
        self._num_empty_turns = 0  # the latest turns, in which nothing was planned or collected
        self._last_submit = 0  # the number of the last Submit in this session
        self._lead = Lead()
        self._late = LateTokens(self._step_time, self._spare_time.tpot_s)

    def turn(self) -> None:
        self._take_inbox()
        began_s = time.monotonic()
        plan = self.scheduler.plan()
        planned_s = time.monotonic() - began_s
        self._use_spare_time(plan)
        self._launch(plan, planned_s)
        if self._is_output_due(plan):
            self._publish(self._collect())
        self._beat_if_due()

    def _use_spare_time(self, plan: StepPlan | None) -> None:
        """A step before which there was work has no gap before it."""
        if not self._spare_time.has_work:
            return
        began_s = time.monotonic()
        has_worked = self._spare_time.use(plan, self._step_time, self.scheduler.num_waiting > 0)
        self._late.worked(time.monotonic() - began_s)
        if has_worked and plan is not None:
            self._first_after_idle, self._was_idle = plan.number, False

    def _launch(self, plan: StepPlan | None, planned_s: float) -> None:
        """Publishes which requests lost or got a slot, in case that the launch ends this process, and
        launches `plan`, if there is one, which took `planned_s` to make. There is time to look ahead while
        the device computes.
        """
        self._num_empty_turns = 0 if plan or self._launched else self._num_empty_turns + 1
        began_s = time.monotonic()
        if evicted := self.scheduler.take_evicted():
            self._late.evicted(len(evicted))
        self._publish([*evicted, *self.scheduler.take_started()])
        if plan is not None:
            self._launch_step(plan)
            if self._steps_ahead:
                self._lead.observe(len(plan.tokens) > 0, planned_s + time.monotonic() - began_s)
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

    def _collect(self) -> list[FromInstance]:
        """What the oldest launched step has given: hidden states, log-probabilities of prompts, its tokens,
        and the requests that fail.
        """
        output = self.engine.collect()
        plan = self._launched.popleft()
        self._observe(plan, output)
        read = self.scheduler.hidden_states(plan, output), self.scheduler.prompt_log_probs(plan, output)
        tokens = self.scheduler.apply(plan, output)
        failed = self.scheduler.take_failed()
        for each in failed:
            log.warning("request %d fails: %s", each.request_id, each.error)
        found = [message for message in read if message is not None]
        return [*found, *([tokens] if len(tokens.tokens) else []), *failed]

    def _observe(self, plan: StepPlan, output: StepOutput) -> None:
        """How long a step took that was collected just now, and the gap before it."""
        now_s = time.monotonic()
        if plan.number != self._first_after_idle and not self.engine.plans_steps:
            self._heartbeat.gaps.observe(output.gap_s)
        # busy_s leaves out how late we read it
        took_s = output.busy_s if self._steps_ahead else now_s - self._running_since_s
        if not self.engine.plans_steps:
            self._late.collected(plan, now_s, took_s)
        self._step_time.observe(plan, took_s)
        self._heartbeat.took(took_s)
        self._running_since_s = now_s

    def _take_inbox(self) -> None:
        """Takes the messages that have come, and those that come before it is time for the next plan; then
        the news of adapters.
        """
        while True:
            if self._moves is not None and self._moves.is_active:
                self._publish(self._moves.step())
            wait_s = self._patience_s()
            news = self.link.receive(wait_s)
            for message in news:
                self._take(message)
            if not wait_s or self._has_adapter_news or not (news or self._has_move_news):
                break
            self._num_empty_turns = 0
        self._publish(self._guided.step(self.scheduler))
        if self._adapters is not None:
            self._publish(self._adapters.step())

    def _patience_s(self) -> float:
        # a single empty turn may be one in which a sequence was evicted
        if self.scheduler.is_idle or (self._num_empty_turns > 1 and self._only_waits):
            self._was_idle = True
            self._late.idle()
            return self._spare_time.patience_s if self._spare_time.has_work else HEARTBEAT_S
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
        has gone on, an adapter is loaded, or a guide is prepared.
        """
        is_moving = self._moves is not None and self._moves.is_active
        is_loading = self._adapters is not None and self._adapters.is_loading
        return (is_moving or is_loading or self._guided.is_preparing) and not self._launched

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
            if isinstance(message, Reserve):
                self._guided.expect(message)
                if not self._guided.is_compiled(message.request):
                    self._publish([Refused(message.move, "guide")])
                    return
            self._publish(self._moves.handle(message))

    def _forget_all(self) -> None:
        if self._moves is not None:
            self._moves.new_session()
        self._guided.forget_all()
        self.scheduler.cancel_all()
        self._last_submit = 0

    def _submit(self, message: Submit) -> None:
        try:
            self._last_submit = max(self._last_submit, message.number)
            self.scheduler.submit(message.request, message.delivered, message.request_epoch, message.age_s)
            self._guided.expect(message)
        except ValueError as error:
            self._publish([Failed(message.request.request_id, str(error), message.request_epoch)])

    def _publish(self, messages: Sequence[FromInstance]) -> None:
        """Sends `messages`, in order; with none, nothing."""
        if messages:
            self.link.publish(messages)

    def _beat_if_due(self) -> None:
        if not self._heartbeat.is_due(self.scheduler.is_idle and not self._spare_time.has_work):
            return
        moved_bytes = self._moves.take_sent_bytes() if self._moves is not None else 0
        load = self.scheduler.load().changed(
            last_submit=self._last_submit, moved_bytes=moved_bytes, late_tokens=self._late.take()
        )
        self._publish([self._heartbeat.beat(self._spare_time.report(load))])
        if self.scheduler.is_idle:
            self.scheduler.check_integrity()
