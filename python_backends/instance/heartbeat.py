"""The heartbeat of an instance reports that it is alive, and its load. Owns
the counts since the last one. Called by the loop. Tested in tests/pure/test_instance.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from python_backends.nouns.messages import Load
from python_backends.watching.metrics import GAP_BOUNDS_S, Histogram

log = logging.getLogger("gapless.instance")

HEARTBEAT_S = 0.2
SLOW_TURN_S = 3.0


class Heartbeat:
    """Owns the histogram of gaps and the time of the last heartbeat. `beat` reports to the launcher."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self.gaps = Histogram(GAP_BOUNDS_S)  # since the last heartbeat
        self._tell = beat
        self._beaten_s = time.monotonic()

    def is_due(self, is_idle: bool) -> bool:
        """Every HEARTBEAT_S while there are requests or jobs; in every turn of an idle loop, so also right
        after the last request has ended.
        """
        return is_idle or time.monotonic() - self._beaten_s >= HEARTBEAT_S

    def beat(self, load: Load) -> Load:
        """Reports to the launcher; returns the message for the scheduler
        model, which is `load` with the gaps.
        """
        silent_s = time.monotonic() - self._beaten_s
        if silent_s > SLOW_TURN_S:
            advice = "an instance is given up after streams.dead_after_s; a smaller engine.token_budget helps"
            log.warning("a step took %.1f s; %s", silent_s, advice)
        self._beaten_s = time.monotonic()
        self._tell()
        gaps, self.gaps = self.gaps, Histogram(GAP_BOUNDS_S)
        return load.changed(gap_counts=tuple(gaps.counts) if any(gaps.counts) else (), gap_sum_s=gaps.sum)
