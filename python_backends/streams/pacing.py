"""How long tokens are put together before they are sent.

Each response takes half a millisecond of a processor on its way through the server, and a CPU engine computes
on the same processors. So the interval between two rounds of sending grows by as much as the sender is busier
than wanted, up to a limit that is not noticed, and shrinks to nothing when it is not: a lone stream gets
every token at once. Tested in tests/pure/test_streams.py.
"""

from __future__ import annotations

SHRINKING = 2.0
FIRST_STEP_S = 0.010


class Pacing:
    def __init__(self, max_interval_s: float, wanted_load: float) -> None:
        self.interval_s = 0.0
        self._max_interval_s = max_interval_s
        self._wanted_load = wanted_load

    def adjust(self, busy_s: float, elapsed_s: float) -> None:
        """Called a few times a second with the time spent in sending out of the time elapsed."""
        wanted_s = self._wanted_load * elapsed_s
        if busy_s > wanted_s:
            self.interval_s = min(
                self._max_interval_s, max(FIRST_STEP_S, self.interval_s) * busy_s / wanted_s
            )
        elif busy_s < wanted_s / SHRINKING:
            self.interval_s = self.interval_s / SHRINKING if self.interval_s > FIRST_STEP_S else 0.0
