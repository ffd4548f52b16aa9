"""Time for a process that watches another: a pause of the whole machine does not count as silence.

`docker pause`, a frozen virtual machine and a suspended host stop both processes. Both continue at the same
time, and the watcher may look before the other one has beaten. So silence is added up from look to look, and
each look adds at most `longest_s`. Each watcher has its own objects; one thread uses them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_S = 1.0  # most that one look adds; watchers look several times a second
SILENT_STEPS = 4.0  # steps like its longest that an instance may be silent for


def longest_silence_s(dead_after_s: float, longest_step_s: float) -> float:
    """Seconds after which a silent instance is given up. It beats between two steps, so a large model on a
    slow machine gets more than `streams.dead_after_s`.
    """
    return max(dead_after_s, SILENT_STEPS * longest_step_s)


class AwakeClock:
    """Seconds in which the watcher was awake.

    `advance` adds the time since the last call, but never more than `longest_s`.
    """

    def __init__(self, longest_s: float = LONGEST_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.now_s = 0.0
        self._longest_s = longest_s
        self._clock = clock
        self._read_s = clock()
        self._late_s = 0.0  # when a call last came late

    @property
    def since_pause_s(self) -> float:
        """Seconds since the last call of `advance` that came late, or since the start."""
        return self.now_s - self._late_s

    def advance(self) -> float:
        """Adds the time since the last call and returns the sum."""
        read_s = self._clock()
        passed_s, self._read_s = read_s - self._read_s, read_s
        self.now_s += min(passed_s, self._longest_s)
        if passed_s > self._longest_s:
            self._late_s = self.now_s
        return self.now_s


class Silence:
    """How long a sign of life has not changed, in seconds in which the watcher was awake."""

    def __init__(self, longest_s: float = LONGEST_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._awake = AwakeClock(longest_s, clock)
        self._sign: object = None
        self._changed_s = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of silence at the last look."""
        return self._awake.now_s - self._changed_s

    def look(self, sign: object) -> float:
        """Returns the seconds since `sign` changed. The first look is a change unless `sign` is None."""
        now_s = self._awake.advance()
        if sign != self._sign:
            self._sign, self._changed_s = sign, now_s
        return self.seconds
