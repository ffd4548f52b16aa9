"""How many requests the tokenizer model refuses, on /metrics. The scheduler model, which has all other
metrics, never hears of these requests.
"""

from __future__ import annotations

import contextlib

import triton_python_backend_utils as pb_utils

from python_backends.watching.metrics import DOOR_COUNTERS

INVALID = "invalid"
QUEUE_FULL, SHUTTING_DOWN = "queue_full", "shutting_down"


class DoorMetrics:
    def __init__(self) -> None:
        [(name, text)] = DOOR_COUNTERS.items()
        self._family = pb_utils.MetricFamily(name, text, pb_utils.MetricFamily.COUNTER)
        self._counts = {
            reason: self._family.Metric(labels={"reason": reason})
            for reason in (INVALID, QUEUE_FULL, SHUTTING_DOWN)
        }

    def refused(self, code: str, count: int = 1) -> None:
        """By the code of the error. A round trip to the server. If it fails, no request notices."""
        with contextlib.suppress(Exception):
            self._counts.get(code, self._counts[INVALID]).increment(count)
