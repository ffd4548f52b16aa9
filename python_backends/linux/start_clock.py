"""Where the seconds of a start go, from the moment at which Linux made the process: phases in their order.

Each process has one `start_clock`. What is done between two calls of `ended` is the phase that the second one
names; a name may come again. The log of a start has them, and `gapless bench startup` adds them up.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
START_FIELD = 19  # of /proc/self/stat, after the name, in ticks since the machine was started


class StartClock:
    """Its state is written by `ended` and `timed` alone."""

    def __init__(self, began_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        """`began_s`: when the process was made, by the same clock as `now_s`."""
        self._now_s = now_s
        self._began_s = self._last_s = began_s
        self._phases: dict[str, float] = {}

    def ended(self, phase: str) -> None:
        """All since the last call was this phase."""
        now_s = self._now_s()
        self._add(phase, now_s - self._last_s)
        self._last_s = now_s

    def timed(self, phase: str, items: Iterable[Item]) -> Iterator[Item]:
        """The same items. What it takes to get each is `phase`, and no part of the one that uses them."""
        iterator = iter(items)
        while True:
            began_s = self._now_s()
            item = next(iterator, None)
            took_s = self._now_s() - began_s
            self._add(phase, took_s)
            self._last_s += took_s
            if item is None:
                return
            yield item
            del item  # its memory is free while the next one is got

    def _add(self, phase: str, seconds: float) -> None:
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def __str__(self) -> str:
        """In all, and each phase: `2.31 s: imports 1.20, tokenizer 0.31`."""
        parts = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in self._phases.items())
        return f"{self._last_s - self._began_s:.2f} s: {parts}"


def read_phases(text: str) -> dict[str, float]:
    """Returns the seconds of each phase in what `str` has made of a clock."""
    return {
        name: float(seconds) for name, seconds in re.findall(r"(?:^|[:,] )([^:,]+?) (\d+\.\d+)(?=,|$)", text)
    }


def _made_s() -> float:
    """When this process was made, by time.monotonic; to a hundredth of a second."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    made_s = int(fields[START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - made_s)


start_clock = StartClock(_made_s())
