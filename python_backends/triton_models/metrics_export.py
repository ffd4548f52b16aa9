"""Our numbers on Triton's /metrics: only those that changed since the last
export, because each is a round trip to the server.
Tested in tests/pure/triton_models/test_scheduler.py and tests/server/test_serving.py.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.watching.metrics import Labels, Metrics, families


class MetricsExport:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._families = {name: _family(name, text, is_gauge) for name, text, is_gauge in families()}
        self._gauges = {name for name, _, is_gauge in families() if is_gauge}
        self._exported: dict[tuple[str, Labels], tuple[Any, float]] = {}
        self.export()

    def export(self) -> None:
        for name, labels, value in self._metrics.samples():
            metric, before = self._exported.get((name, labels)) or (
                self._families[name].Metric(labels=dict(labels)),
                None,
            )
            if value == before:
                continue
            if name in self._gauges:
                metric.set(value)  # no difference: that to an infinite value would be no number
            else:
                metric.increment(value - (before or 0.0))
            self._exported[name, labels] = metric, value


def _family(name: str, description: str, is_gauge: bool) -> Any:
    kind = pb_utils.MetricFamily.GAUGE if is_gauge else pb_utils.MetricFamily.COUNTER
    return pb_utils.MetricFamily(name=name, description=description, kind=kind)
