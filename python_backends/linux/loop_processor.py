"""The loop of an instance has a processor to itself; the engine's other threads and Triton's processes share
the rest.

Whatever else an engine's threads do, the loop's own thread has most of a step to do on a CPU: its share of
the computing, and all that lies between two steps. If the loop's thread is preempted all engine threads wait
for it; if another one is, the others take its work. So no other thread gets the loop's processor, where there
are two at least. A new thread inherits the place of the one that started it, so places are assigned again
when there are new threads. Used by an instance and by the launcher, for itself and all that it starts.
"""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

THREADS = Path("/proc/self/task")


def keep_off() -> frozenset[int]:
    """This thread and whatever it starts leave the loop its processor, where there
    is another. Returns where it might run before.
    """
    before = frozenset(os.sched_getaffinity(0))
    os.sched_setaffinity(0, before - {min(before)} or before)
    return before


class LoopProcessor:
    """Of this process, whose main thread is the loop's."""

    def __init__(self) -> None:
        self._all = frozenset(os.sched_getaffinity(0))
        self._placed: set[int] = set()  # threads

    def keep(self) -> None:
        """Gives every thread its place, if there are new ones."""
        threads = {int(each.name) for each in THREADS.iterdir()}
        if threads == self._placed or len(self._all) < 2:
            return
        self._placed, own = threads, min(self._all)
        for thread in threads:
            _place(thread, {own} if thread == os.getpid() else self._all - {own})


def _place(thread: int, processors: Set[int]) -> None:
    try:
        os.sched_setaffinity(thread, processors)
    except ProcessLookupError:
        return  # it has just ended
