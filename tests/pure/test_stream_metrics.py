"""What /metrics shows of adapters does not grow with their versions, and not without end with their names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from python_backends.nouns.request import AdapterVersion
from python_backends.streams.stream_metrics import MOST_ADAPTERS, StreamMetrics
from python_backends.watching.metrics import Metrics

NAME = "gapless_adapter_requests_total"


def stream(name: str, version: str = "1") -> Any:
    return SimpleNamespace(request=SimpleNamespace(prompt=(1,), adapter=AdapterVersion(name, version)))


def test_requests_with_an_adapter_are_counted_by_its_name() -> None:
    metrics = Metrics()
    counted = StreamMetrics(metrics)
    for each in (stream("law", "1"), stream("law", "2"), stream("poems"), stream("", "")):
        counted.accepted(each)
    assert metrics.sums(NAME, "adapter") == {"law": 2, "poems": 1}


def test_further_names_are_counted_together() -> None:
    metrics = Metrics()
    counted = StreamMetrics(metrics)
    for _ in range(2):
        for number in range(MOST_ADAPTERS + 3):
            counted.accepted(stream(f"job{number}"))
    found = metrics.sums(NAME, "adapter")
    assert len(found) == MOST_ADAPTERS + 1
    assert (found["job0"], found["other"]) == (2, 6)
