"""How many requests the tokenizer model refuses, on /metrics. The scheduler model, which has all other
metrics, never hears of these requests.
"""

from __future__ import annotations

import contextlib

import triton_python_backend_utils as pb_utils

from python_backends.watching.metrics import DOOR_COUNTERS

INVALID = "invalid"
SHUTTING_DOWN = "shutting_down"


class DoorMetrics:
    def __init__(self) -> None:
        [(name, text)] = DOOR_COUNTERS.items()
        self._family = pb_utils.MetricFamily(name, text, pb_utils.MetricFamily.COUNTER)
        self._counts = {
            reason: self._family.Metric(labels={"reason": reason}) for reason in (INVALID, SHUTTING_DOWN)
        }

    def refused(self, reason: str, count: int = 1) -> None:
        """A round trip to the server. If it fails, no request notices."""
        with contextlib.suppress(Exception):
            self._counts[reason].increment(count)
