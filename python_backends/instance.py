"""One instance: the loop over a slot scheduler and an engine, in a process of its own.

Owns the waiting queue, the slots and the device; knows nothing of clients. The launcher starts it (`python -m python_backends.instance
RUN_DIRECTORY NUMBER`), watches its state file and starts it anew when it ends or stops beating.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import setproctitle

from python_backends.config import Settings, SettingsError, undump
from python_backends.engine.protocol import Engine
from python_backends.instance_state import State, StateFile
from python_backends.links import InstanceEnd, NewSession
from python_backends.messages import Cancel, Failed, Load, Message, Submit
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.text.checkpoint import CheckpointError, read_checkpoint

log = logging.getLogger("gapless.instance")

HEARTBEAT_S = 0.2
SLOW_TURN_S = 3.0


class Instance:
    """The loop. `turn` is one step of it, and is the whole system: take, plan, launch, apply, publish."""

    def __init__(self, scheduler: SlotScheduler, engine: Engine, link: InstanceEnd, beat: Callable[[], None]) -> None:
        self.scheduler = scheduler
        self.engine = engine
        self._link = link
        self._beat = beat
        self._beaten_s = time.monotonic()

    def turn(self) -> None:
        self._take_inbox(wait_s=HEARTBEAT_S if self.scheduler.is_idle else 0.0)
        plan = self.scheduler.plan()
        self._publish(self.scheduler.take_started())  # before the launch: if that is the end of us, they were in it
        if plan is not None:
            self.engine.launch(plan)
            self._publish([self.scheduler.apply(plan, self.engine.collect())])
        self._beat_if_due()

    def _take_inbox(self, wait_s: float) -> None:
        for message in self._link.receive(wait_s):
            if isinstance(message, Submit):
                self._submit(message)
            elif isinstance(message, Cancel):
                self.scheduler.cancel(message.request_id)
            elif isinstance(message, NewSession):
                self.scheduler.cancel_all()

    def _submit(self, message: Submit) -> None:
        try:
            self.scheduler.submit(message.request, message.delivered, message.epoch)
        except ValueError as error:
            self._publish([Failed(message.request.request_id, str(error))])

    def _publish(self, messages: Sequence[Message]) -> None:
        if messages:
            self._link.publish(messages)

    def _beat_if_due(self) -> None:
        """Says that we live and what we carry: while at work a few times a second, at once when the last request has ended."""
        now_s = time.monotonic()
        if now_s - self._beaten_s > SLOW_TURN_S:
            log.warning(
                "a step took %.1f s: an instance is given up after streams.dead_after_s; a smaller token_budget helps",
                now_s - self._beaten_s,
            )
        if not self.scheduler.is_idle and now_s - self._beaten_s < HEARTBEAT_S:
            return
        self._beaten_s = now_s
        self._beat()
        self._publish([self._load()])
        if self.scheduler.is_idle:
            self.scheduler.check_integrity()

    def _load(self) -> Load:
        scheduler = self.scheduler
        return Load(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_slots=scheduler.limits.num_slots,
            num_used_blocks=scheduler.blocks.num_used,
            num_retained_blocks=scheduler.blocks.num_retained,
            num_blocks=scheduler.limits.num_blocks,
            num_evictions=scheduler.num_evictions,
        )


def _torch_engine(settings: Settings) -> Engine:
    from python_backends.engine.torch_engine import TorchEngine  # brings torch, which other engines don't need

    return TorchEngine(settings)


def _toy_engine(settings: Settings) -> Engine:
    from python_backends.engine.toy_engine import ToyEngine

    return ToyEngine(settings)


ENGINES: dict[str, Callable[[Settings], Engine]] = {"torch": _torch_engine, "toy": _toy_engine}


def build(settings: Settings) -> tuple[SlotScheduler, Engine]:
    """The engine of the settings and a scheduler over it. Raises SettingsError where the model can't be served."""
    engine = ENGINES[settings.engine.kind](settings)
    limits = engine.limits
    limits = replace(limits, max_model_tokens=min(limits.max_model_tokens, limits.kv_tokens))  # a lone request always fits
    return SlotScheduler(limits, settings.engine.token_budget, settings.scheduling), engine


def main(run_directory: Path, number: int) -> None:
    parent = os.getppid()
    setproctitle.setproctitle(f"gapless-instance-{number}")
    logging.basicConfig(level=logging.INFO, format=f"instance {number}: %(message)s", stream=sys.stderr)
    stopping: list[int] = []
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda signum, _frame: stopping.append(signum))
    state = StateFile(run_directory, number)
    state.write_starting()
    settings = undump(run_directory / "settings.json")
    read_checkpoint(settings.model_directory)  # what the stubs could not read is better said here, once
    scheduler, engine = build(settings)
    link = InstanceEnd(run_directory, f"instance-{number}", scheduler.limits)
    state.write(State.READY, scheduler.limits)
    instance = Instance(scheduler, engine, link, state.beat)
    while not stopping and os.getppid() == parent:
        instance.turn()
    state.write(State.DRAINING, scheduler.limits)
    link.close()
    engine.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except (SettingsError, CheckpointError) as refused:
        log.error("%s", refused)
        sys.exit(1)
