"""With how many threads torch computes on a CPU while other programs use the processors as well.

The threads meet at the end of every product, and wait for the one whose processor another program has just
taken: two threads on two processors can then be slower than one. So where threads of this process have waited
for a processor, steps with one thread fewer are compared with steps as before, in turn, and what is faster is
kept. Later one thread more is tried in the same way. Owns torch's number of threads; called by the engine
around every step, in the thread that computes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("gapless.instance")

LOOK_S = 1.0  # from one look at what threads have waited to the next
WAITED = 0.15  # share of the time for which threads waited, so that fewer are tried
NUM_BLOCKS, BLOCK_STEPS = 8, 4  # of a comparison; the first step of a block does not count
FASTER = 0.95  # times as long: at most so, or nothing changes
RETRY_S, MOST_RETRY_S = 8.0, 128.0  # after a comparison that has changed nothing; each time twice as long


def waited_s() -> float:
    """Seconds for which threads of this process could have run and had no processor, added up; 0 where the
    kernel does not tell.
    """
    total = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[1])
        except (OSError, IndexError):  # the thread has ended, or the kernel counts nothing
            continue
    return total * 1e-9


class Threads:
    """From 1 to `most`. `change` sets the number; `waited_s` is what threads have waited so far. `step`
    changes it.
    """

    def __init__(
        self, most: int, change: Callable[[int], None], waited_s: Callable[[], float] = waited_s
    ) -> None:
        self._most, self._change, self._waited_s = most, change, waited_s
        self.count = most
        self._other = 0  # compared with `count`; 0: nothing is compared
        self._taken_s: tuple[list[float], list[float]] = ([], [])  # by steps with `count`, with the other
        self._num_steps = 0  # of the comparison
        self._look_s, self._last_waited_s = 0.0, 0.0
        self._retry_s, self._next_s = RETRY_S, 0.0

    def step(self, seconds: float, now_s: float) -> None:
        """After a step in which all rows decode; `seconds`: what it took."""
        if self._other:
            self._compare(seconds, now_s)
        elif now_s - self._look_s >= LOOK_S:
            self._look(now_s)

    def _look(self, now_s: float) -> None:
        waited_s, passed_s = self._waited_s(), now_s - self._look_s
        share, is_first = (waited_s - self._last_waited_s) / passed_s, not self._look_s
        self._look_s, self._last_waited_s = now_s, waited_s
        if is_first or now_s < self._next_s:
            return
        if self.count < self._most:
            self._begin(self.count + 1)
        elif self.count > 1 and share > WAITED:
            self._begin(self.count - 1)

    def _begin(self, other: int) -> None:
        self._other, self._num_steps, self._taken_s = other, 0, ([], [])

    def _compare(self, seconds: float, now_s: float) -> None:
        block, place = divmod(self._num_steps, BLOCK_STEPS)
        if place:
            self._taken_s[block % 2].append(seconds)
        self._num_steps += 1
        if self._num_steps == NUM_BLOCKS * BLOCK_STEPS:
            self._end(now_s)
        elif self._num_steps % BLOCK_STEPS == 0:
            self._change(self._other if block % 2 == 0 else self.count)

    def _end(self, now_s: float) -> None:
        before_s, after_s = map(sum, self._taken_s)
        if after_s <= FASTER * before_s:
            share = after_s / before_s
            log.info(
                "%d threads instead of %d: a step takes %.2f of the time", self._other, self.count, share
            )
            self.count, self._retry_s = self._other, RETRY_S
        else:
            self._retry_s = min(MOST_RETRY_S, 2 * self._retry_s)
        self._other, self._next_s = 0, now_s + self._retry_s
        self._look_s, self._last_waited_s = now_s, self._waited_s()
        self._change(self.count)
