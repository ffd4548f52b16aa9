"""Our numbers on Triton's /metrics: only those that changed since the last export, and some at a time,
because each is a round trip to the server.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.watching.metrics import Labels, Metrics, families


class MetricsExport:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._families = {name: _family(name, text, is_gauge) for name, text, is_gauge in families()}
        self._gauges = {name for name, _, is_gauge in families() if is_gauge}
        self._exported: dict[tuple[str, Labels], tuple[Any, float]] = {}
        self._left: deque[tuple[str, Labels, float]] = deque()  # to be exported
        self.export()

    @property
    def is_under_way(self) -> bool:
        return bool(self._left)

    def export(self) -> None:
        """All that has changed."""
        self.begin()
        self.go_on(len(self._left))

    def begin(self) -> None:
        """Takes the numbers that have changed, unless earlier ones are still to be exported."""
        if not self._left:
            unknown = None, None
            self._left.extend(
                (name, labels, value)
                for name, labels, value in self._metrics.samples()
                if self._exported.get((name, labels), unknown)[1] != value
            )

    def go_on(self, most: int) -> None:
        """Exports at most `most` of the numbers that were taken."""
        for _ in range(min(most, len(self._left))):
            self._export(*self._left.popleft())

    def _export(self, name: str, labels: Labels, value: float) -> None:
        metric, before = self._exported.get((name, labels)) or (
            self._families[name].Metric(labels=dict(labels)),
            0.0,
        )
        if name in self._gauges:
            metric.set(value)  # no difference: that to an infinite value would be no number
        else:
            metric.increment(value - before)
        self._exported[name, labels] = metric, value


def _family(name: str, description: str, is_gauge: bool) -> Any:
    kind = pb_utils.MetricFamily.GAUGE if is_gauge else pb_utils.MetricFamily.COUNTER
    return pb_utils.MetricFamily(name=name, description=description, kind=kind)
