"""Reserves a processor for the loop of an instance; the engine's other threads and Triton's processes share
the others.

On a CPU, the loop's thread has the most work of all engine threads: its share of the computing, and
everything between two steps. If it is preempted, all engine threads wait for it; if another one is preempted,
the others take over its work. So no other thread gets the loop's processor, if there are at least two. A new
thread inherits the processors of the thread that started it, so processors are assigned again when there are
new threads. Used by an instance, and by the launcher for itself and all processes that it starts.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

THREADS = Path("/proc/self/task")


def keep_off() -> frozenset[int]:
    """Keeps this thread, and the threads and processes that it starts, off the loop's processor, if there is
    another one. Returns the processors that this thread had before.
    """
    before = frozenset(os.sched_getaffinity(0))
    os.sched_setaffinity(0, before - {min(before)} or before)
    return before


class LoopProcessor:
    """Assigns the processors of this process's threads. The main thread is the loop's."""

    def __init__(self) -> None:
        self._all = frozenset(os.sched_getaffinity(0))
        self._placed: set[int] = set()  # threads

    def keep(self) -> None:
        """Assigns processors to all threads if there are new ones."""
        threads = {int(each.name) for each in THREADS.iterdir()}
        if threads == self._placed or len(self._all) < 2:
            return
        self._placed, own = threads, min(self._all)
        for thread in threads:
            # it has just ended, or these processors were taken away: it stays where Linux has put it
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, {own} if thread == os.getpid() else self._all - {own})
