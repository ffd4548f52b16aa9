"""How long before the running step may end the next plan is made: as long as the host takes to plan and
launch a step of that kind, as it was measured, and a little more.

A plan that is made too late leaves the device idle; one that is made too early does not have the requests
that come meanwhile. Steps with prompts take the host longer than others, most of all those that are not
captured. Called by the loop.
"""

from __future__ import annotations

from collections import deque

SPARE_S = 0.001  # for a loop that wakes up late
FIRST_S = 0.001  # before any launch was measured
NUM_LATEST = 64
BATCH = 16  # the level is taken again after so many
LEVEL = 0.95  # of the latest launches are no longer


class Lead:
    def __init__(self) -> None:
        # launches of steps without prompts, and with them
        self._latest: tuple[deque[float], ...] = tuple(deque(maxlen=NUM_LATEST) for _ in range(2))
        self._num_observed = [0, 0]
        self._levels = [FIRST_S, 0.0]

    def seconds(self, with_prompts: bool) -> float:
        """Before the earliest end of the running step. Of a kind that was not yet seen: as of the other."""
        levels = self._levels
        return SPARE_S + ((levels[1] or levels[0]) if with_prompts else levels[0])

    def observe(self, with_prompts: bool, seconds: float) -> None:
        """`seconds` from the beginning of planning until the step was launched."""
        kind = int(with_prompts)
        self._latest[kind].append(seconds)
        self._num_observed[kind] += 1
        if self._num_observed[kind] < BATCH or self._num_observed[kind] % BATCH == 0:
            latest = sorted(self._latest[kind])
            self._levels[kind] = latest[int(LEVEL * (len(latest) - 1))]
