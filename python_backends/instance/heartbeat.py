"""The heartbeat of an instance reports that it is alive, and its load. Owns
the counts since the last one. Called by the loop.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from python_backends.nouns.load import Load
from python_backends.watching.metrics import GAP_BOUNDS_S, Histogram
from python_backends.wires.sparse_log import SparseLog

log = logging.getLogger("gapless.instance")

HEARTBEAT_S = 0.2
SLOW_STEP_S = 3.0
NUM_STEPS = 64  # latest steps, the longest of which says how long the next ones may take


class Heartbeat:
    """Owns the histogram of gaps, the times of the latest steps and the time of the last heartbeat. `beat`
    reports to the launcher, with the longest of the latest steps.
    """

    def __init__(self, beat: Callable[[float], None], step_s: float = 0.0) -> None:
        """`step_s`: what the first step may take, as far as is known."""
        self.gaps = Histogram(GAP_BOUNDS_S)  # since the last heartbeat
        self._tell = beat
        self._beaten_s = time.monotonic()
        self._steps_s = deque([step_s], NUM_STEPS)
        self._log = SparseLog(log)

    def took(self, step_s: float) -> None:
        """A step took so long."""
        self._steps_s.append(step_s)
        if step_s > SLOW_STEP_S:
            self._log.warning(
                "slow",
                "a step took %.1f s: requests that come meanwhile wait for its end; a smaller"
                " engine.token_budget or model, or more engine.threads, helps",
                step_s,
            )

    def is_due(self, is_idle: bool) -> bool:
        """Every HEARTBEAT_S while there are requests or jobs; in every turn of an idle loop, so also right
        after the last request has ended.
        """
        return is_idle or time.monotonic() - self._beaten_s >= HEARTBEAT_S

    def beat(self, load: Load) -> Load:
        """Reports to the launcher; returns the message for the scheduler model, which is `load` with the gaps
        and the longest step.
        """
        self._beaten_s = time.monotonic()
        longest_s = max(self._steps_s)
        self._tell(longest_s)
        gaps, self.gaps = self.gaps, Histogram(GAP_BOUNDS_S)
        return load.changed(
            gap_counts=tuple(gaps.counts) if any(gaps.counts) else (),
            gap_sum_s=gaps.sum,
            longest_step_s=longest_s,
        )
