"""Who may interrupt whom: what a thread asks for holds for it and for all that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from python_backends.linux.time_slice import stand_back, take_short_turns, take_usual_turns

ASK = "import os; print(os.sched_getscheduler(0))"


def _policies(*asked: Callable[[], None]) -> tuple[int, int]:
    """Of a thread that asked for these, and of a process that it started."""

    def ask() -> tuple[int, int]:
        for each in asked:
            each()
        started = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
        return os.sched_getscheduler(0), int(started.stdout)

    with ThreadPoolExecutor(1) as own:
        return own.submit(ask).result()


def test_short_turns_interrupt_or_wait_for_a_gap() -> None:
    assert _policies(partial(take_short_turns, interrupting=True)) == (os.SCHED_OTHER, os.SCHED_OTHER)
    assert _policies(partial(take_short_turns, interrupting=False)) == (os.SCHED_BATCH, os.SCHED_BATCH)


def test_an_instance_computes_like_anybody_whatever_its_launcher_asked_for() -> None:
    assert _policies(partial(take_short_turns, interrupting=False), take_usual_turns) == (
        os.SCHED_OTHER,
        os.SCHED_OTHER,
    )


def test_who_stands_back_interrupts_nobody() -> None:
    assert _policies(stand_back) == (os.SCHED_BATCH, os.SCHED_BATCH)
