"""One instance: the loop over a slot scheduler and an engine, in a process of its own.

Owns the waiting queue, the slots and the device; knows nothing of clients. The launcher starts it (`python -m python_backends.instance
RUN_DIRECTORY NUMBER`), watches its record on the board and starts it anew when it ends or stops beating.
"""

from __future__ import annotations

import datetime
import gc
import logging
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import setproctitle

from python_backends.board import Board
from python_backends.config import Settings, SettingsError, undump
from python_backends.engine.engine_thread import EngineThread
from python_backends.engine.kinds import ENGINES
from python_backends.engine.protocol import Announcing, Engine
from python_backends.heartbeat import HEARTBEAT_S, Heartbeat
from python_backends.held_tokens import HeldTokens
from python_backends.instance_state import InstanceRecord, State
from python_backends.links import InstanceEnd, NewSession
from python_backends.loop_processor import LoopProcessor
from python_backends.messages import Cancel, Failed, FromInstance, Pace, Predicted, Submit, ToInstance
from python_backends.scheduling.policies import reserve_max_tokens
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.scheduling.self_planned import SelfPlannedScheduler, reserve_likely
from python_backends.step import StepPlan
from python_backends.text.checkpoint import CheckpointError, read_checkpoint
from python_backends.text.detokenizer import Detokenizer
from python_backends.text.door import open_door
from python_backends.time_slice import take_usual_turns
from python_backends.warm_up import warm_up

log = logging.getLogger("gapless.instance")

EARLY_S = 0.002  # the next plan is made so long before the running step may end


class Link(Protocol):
    """Where requests come from and tokens go: `links.InstanceEnd`, or whoever drives the loop without a server."""

    def receive(self, timeout_s: float) -> list[Any]: ...

    def publish(self, messages: Sequence[FromInstance]) -> None: ...


class Instance:
    """The loop. `turn` is one step of it, and is the whole system: take, plan, launch, collect, publish.

    `steps_ahead` steps are launched before the oldest is read, so the engine has the next plan when it has done with one. The next
    plan is made as late as that allows: what comes in while a step runs is in the one behind it.
    """

    def __init__(self, scheduler: SlotScheduler, engine: Engine, link: Link, beat: Callable[[], None], steps_ahead: int = 0) -> None:
        self.scheduler = scheduler
        self.engine = engine
        self.link = link
        self._heartbeat = Heartbeat(beat)
        self._steps_ahead = 0 if engine.plans_steps else steps_ahead
        self._launched: deque[StepPlan] = deque()
        self._has_rested = True
        self._after_rest = -1  # number of the last step that began when there had been nothing to do: no gap stands before it
        self._running_since_s = 0.0  # the oldest launched step
        self._held = HeldTokens()
        self._step_time = scheduler.outlook.step_time

    def turn(self) -> None:
        self._take_inbox()
        plan = self.scheduler.plan()
        self._publish(self.scheduler.take_started(), self._next_tokens_s(plan))  # if the launch is the end of us, they were in it
        if plan is not None:
            self._launch(plan)
        self.scheduler.refresh()
        if self._launched and (plan is None or len(self._launched) > self._steps_ahead):
            self._collect()
        self._beat_if_due()

    def _launch(self, plan: StepPlan) -> None:
        if not self._launched:
            self._running_since_s = time.monotonic()
        self._launched.append(plan)
        if self._has_rested:
            self._after_rest, self._has_rested = plan.number, False
        self.engine.launch(plan)

    def _collect(self) -> None:
        output = self.engine.collect()
        plan, now_s = self._launched.popleft(), time.monotonic()
        if plan.number != self._after_rest and not self.engine.plans_steps:
            self._heartbeat.gaps.observe(output.gap_s)
        took_s = output.busy_s if self._steps_ahead else now_s - self._running_since_s  # not how late we read it
        self._step_time.observe(plan, took_s)
        self._running_since_s = now_s
        tokens = self.scheduler.apply(plan, output)
        self._publish([*([tokens] if len(tokens.tokens) else []), *self.scheduler.take_failed()])

    def _take_inbox(self) -> None:
        """What has come, and what comes before it is time for the next plan."""
        while True:
            wait_s = self._patience_s()
            news = self.link.receive(wait_s)
            for message in news:
                self._take(message)
            if not news or not wait_s:
                return

    def _patience_s(self) -> float:
        if self.scheduler.is_idle:
            self._has_rested = True
            return HEARTBEAT_S
        if not self._launched:
            return 0.0
        least_s = self._step_time.least_s(self._launched[0]) - EARLY_S
        return max(0.0, self._running_since_s + least_s - time.monotonic())

    def _next_tokens_s(self, plan: StepPlan | None) -> float:
        """When the next tokens are expected if `plan` is launched now."""
        oldest = self._launched[0] if self._launched else plan
        if oldest is None:
            return math.inf
        began_s = self._running_since_s if self._launched else time.monotonic()
        return began_s + self._step_time.expected_s(oldest)

    def _take(self, message: ToInstance | NewSession) -> None:
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Predicted):
            self.scheduler.predict(message.request_id, message.prediction)
        elif isinstance(message, Cancel):
            self.scheduler.cancel(message.request_id)
        elif isinstance(message, Pace):
            self._held.interval_s = message.interval_s
        elif isinstance(message, NewSession):
            self.scheduler.cancel_all()
            self._held = HeldTokens()

    def _submit(self, message: Submit) -> None:
        try:
            self.scheduler.submit(message.request, message.delivered, message.epoch)
        except ValueError as error:
            self._publish([Failed(message.request.request_id, str(error))])

    def _publish(self, messages: Sequence[FromInstance], next_tokens_s: float = 0.0) -> None:
        """In order. Tokens may wait for those of the next steps, if these don't come too late."""
        now = self._held.put(messages, time.monotonic()) + self._held.due(next_tokens_s)
        if now:
            self.link.publish(now)

    def _beat_if_due(self) -> None:
        if not self._heartbeat.is_due(self.scheduler.is_idle):
            return
        self._publish([self._heartbeat.beat(self.scheduler)])
        if self.scheduler.is_idle:
            self.scheduler.check_integrity()


def build(settings: Settings) -> tuple[SlotScheduler, Engine]:
    """The engine of the settings and a scheduler over it. Raises SettingsError where the model can't be served."""
    if settings.steps_ahead and not settings.scheduling.static_slots:
        raise SettingsError(f"engine.steps_ahead = {settings.steps_ahead}: scheduling.static_slots = false takes 0")
    make = partial(ENGINES[settings.engine.kind], settings)
    blocking = settings.engine.kind == "torch" and settings.model.device == "cpu"  # others compute while the loop goes on
    engine = EngineThread(make) if blocking and settings.steps_ahead else make()
    gc.collect()
    gc.freeze()  # what is loaded stays: looking at all of it for garbage took a step's time
    limits = engine.limits
    limits = limits.changed(max_model_tokens=min(limits.max_model_tokens, limits.kv_tokens))  # a lone request always fits
    if engine.plans_steps:
        reserve = reserve_likely if settings.tensorrt_llm.capacity == "max_utilization" else reserve_max_tokens
        return SelfPlannedScheduler(limits, settings.engine.token_budget, settings.scheduling, reserve), engine
    schedulers = partial(SlotScheduler, limits, settings.engine.token_budget, settings.scheduling)
    if settings.engine.kind != "toy":
        warm_up(engine, schedulers())
    return schedulers(), engine


def check_texts(settings: Settings) -> None:
    """What the stubs could not take is better said here, once. Raises CheckpointError."""
    checkpoint = read_checkpoint(settings.model_directory)
    Detokenizer(checkpoint)
    open_door(checkpoint, settings.limits, max_model_tokens=1)  # the engine knows how many, later


def _trace(instance: Instance, num_steps: int) -> None:
    from python_backends.engine.trace import trace_steps  # brings torch

    path = Path.cwd() / f"gapless-trace-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    try:
        count = trace_steps(instance, num_steps, path)
        log.info("a trace of %d steps: %s", count, path)
    except OSError as error:
        log.error("no trace: %s", error)


def main(run_directory: Path, number: int) -> None:
    setproctitle.setproctitle(f"gapless-instance-{number}")
    take_usual_turns()  # it is the one that computes
    logging.basicConfig(level=logging.INFO, format=f"instance {number}: %(message)s", stream=sys.stderr)
    stopping: list[int] = []
    traces: list[int] = []
    signal.signal(signal.SIGUSR1, lambda signum, _frame: traces.append(signum))
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda signum, _frame: stopping.append(signum))
    state = InstanceRecord(Board.inherited(), number)
    state.write_starting()
    settings = undump(run_directory / "settings.json")
    check_texts(settings)
    scheduler, engine = build(settings)
    link = InstanceEnd(run_directory, f"instance-{number}", scheduler.limits)
    state.write(State.READY, scheduler.limits)
    if isinstance(engine, Announcing):
        engine.on_done(link.wake)  # however late it was expected
    processor = LoopProcessor() if settings.engine_gives_way else None

    def beat() -> None:
        state.beat()
        if processor is not None:
            processor.keep()

    instance = Instance(scheduler, engine, link, beat, settings.steps_ahead)
    while not stopping:
        instance.turn()
        if traces:
            traces.clear()
            _trace(instance, settings.engine.trace_steps)
    state.write(State.DRAINING, scheduler.limits)
    engine.close()  # it may wake the link until then
    link.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except (SettingsError, CheckpointError) as refused:
        log.error("%s", refused)
        sys.exit(1)
    except Exception:
        log.exception("this instance ends")
        sys.stderr.flush()
        os._exit(1)  # what a dead engine would do on its way out may take for ever
