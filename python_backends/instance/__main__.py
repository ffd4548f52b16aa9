"""The process of an instance: `python -m python_backends.instance RUN_DIRECTORY NUMBER`, started by the
launcher.

The launcher watches its record on the board, and starts it again when it ends or stops beating.
"""

from __future__ import annotations

import datetime
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path

import setproctitle

from python_backends.checkpoint.source import CheckpointError
from python_backends.engine.kinds import kind_of
from python_backends.instance.build import (
    build,
    build_copier,
    build_training,
    spare_time,
    start_adapters,
    start_guides,
    start_moves,
    watch_jobs,
)
from python_backends.instance.ending import Ending
from python_backends.instance.loop import Instance, Parts
from python_backends.linux.loop_processor import LoopProcessor
from python_backends.linux.start_clock import start_clock
from python_backends.linux.time_slice import take_usual_turns
from python_backends.nouns.request import AdapterVersion, ModelLimits
from python_backends.settings import WRITTEN, Settings, SettingsError, read_settings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.detokenize.detokenizer import Detokenizer
from python_backends.text.door.door import open_door
from python_backends.watching.board import Board
from python_backends.watching.instance_state import InstanceRecord, State
from python_backends.watching.launcher_record import is_draining
from python_backends.wires.run_directory import SETTINGS
from python_backends.wires.sessions import InstanceEnd

log = logging.getLogger("gapless.instance")


def check_texts(settings: Settings) -> None:
    """Reads the files that the stubs will read, so that an error in them is
    reported once, here. Raises CheckpointError.
    """
    checkpoint = read_checkpoint(settings.model_directory)
    Detokenizer(checkpoint)
    open_door(checkpoint, settings.limits, max_model_tokens=1)  # the engine determines the real number later


def _trace(instance: Instance) -> None:
    from python_backends.engine.trace import NUM_STEPS, trace_steps  # imports torch

    path = WRITTEN / f"gapless-trace-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    try:
        WRITTEN.mkdir(parents=True, exist_ok=True)
        count = trace_steps(instance, NUM_STEPS, path)
        log.info("a trace of %d steps: %s", count, path)
    except OSError as error:
        log.error("no trace: %s", error)


def _beat(state: InstanceRecord, processor: LoopProcessor | None, longest_step_s: float) -> None:
    state.beat(longest_step_s)
    if processor is not None:
        processor.keep()


def _show(state: InstanceRecord, limits: ModelLimits, adapters: tuple[AdapterVersion, ...]) -> None:
    """The door lets these adapters through from now on."""
    state.write_limits(limits.changed(adapters=adapters))


def main(run_directory: Path, number: int) -> None:
    start_clock.ended("imports")
    setproctitle.setproctitle(f"gapless-instance-{number}")
    take_usual_turns()  # this process computes
    logging.basicConfig(level=logging.INFO, format=f"instance {number}: %(message)s", stream=sys.stderr)
    traces: list[int] = []
    signal.signal(signal.SIGUSR1, lambda signum, _frame: traces.append(signum))
    ending = Ending(partial(is_draining, Board.inherited()))
    ending.obey_signals()
    state = InstanceRecord(Board.inherited(), number)
    state.write_on(State.STARTING)
    settings = read_settings(run_directory / SETTINGS)
    check_texts(settings)
    start_clock.ended("tokenizer")
    scheduler, engine = build(settings)
    copier = build_copier(settings, engine, run_directory, number)
    address = copier.address if copier is not None else ("", "")
    link = InstanceEnd(run_directory, f"instance-{number}", scheduler.limits, *address)
    processor = LoopProcessor() if kind_of(settings).gives_way(settings) else None
    moves = start_moves(settings, scheduler, copier, link.wake)
    show = partial(_show, state, scheduler.limits)
    adapters = start_adapters(settings, scheduler, engine, link.wake, show)
    published = adapters.search if adapters is not None else lambda: None
    training = build_training(settings, engine, scheduler, published)
    spare = spare_time(settings, training)
    beat = partial(_beat, state, processor)
    guided = start_guides(settings, scheduler, engine, link.wake)
    parts = Parts(moves, adapters, guided, spare)
    instance = Instance(scheduler, engine, link, beat, settings.steps_ahead, parts)
    watch = watch_jobs(settings, training, link.wake)
    state.write_on(State.READY)
    start_clock.ended("wires")
    log.info("ready after %s", start_clock)
    while not ending.is_due():
        instance.turn()
        if traces:
            traces.clear()
            _trace(instance)
    state.write_on(State.DEAD)
    # the copier uses the engine's memory, and all may call link.wake until they are closed
    for part in (watch, spare, adapters, copier, engine, link):
        if part is not None:
            part.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except (SettingsError, CheckpointError) as refused:
        log.error("%s", refused)
        sys.exit(1)
    except Exception:
        log.exception("the instance ends because of this error")
        sys.stderr.flush()
        os._exit(1)  # a normal exit may hang in a broken engine
