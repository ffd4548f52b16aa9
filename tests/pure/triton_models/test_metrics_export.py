"""What our numbers on /metrics cost: each that has changed is a round trip to the server, once a second."""

from __future__ import annotations

import math
from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from python_backends.cluster.router import Router
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load
from python_backends.nouns.request import ModelLimits, Request, Sampling
from python_backends.settings import ClusterSettings
from python_backends.streams.stream import Stream
from python_backends.triton_models.instance_loads import InstanceLoads
from python_backends.watching.board import MAX_INSTANCES
from python_backends.watching.launcher_record import LauncherRecord
from python_backends.watching.metrics import TIMESTAMP, Metrics

LIMITS = ModelLimits(max_model_tokens=64, vocab_size=100, num_slots=4, num_blocks=100, block_tokens=16)
PROMPT = np.arange(8, dtype=np.int32)


class Family:
    """As Triton's. Says which of its numbers were written."""

    GAUGE, COUNTER = 1, 2
    written: list[dict[str, str]]
    numbers: dict[str, Number]  # the last one of each name

    def __init__(self, name: str, **_: Any) -> None:
        self.name = name

    def Metric(self, labels: dict[str, str]) -> Number:  # noqa: N802 (Triton's own name)
        return Number({"name": self.name, **labels})


class Number:
    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.value = 0.0
        Family.numbers[labels["name"]] = self

    def increment(self, amount: float) -> None:
        self.set(self.value + amount)

    def set(self, value: float) -> None:
        self.value = value
        Family.written.append(self.labels)


def trips_by_instance() -> Counter[str]:
    """Since the last call."""
    counts = Counter(labels["instance"] for labels in Family.written if "instance" in labels)
    Family.written = []
    return counts


@pytest.fixture
def server(pb_utils: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from python_backends.triton_models import metrics_export

    # an earlier test may have imported it, with that test's `pb_utils`
    monkeypatch.setattr(metrics_export.pb_utils, "MetricFamily", Family, raising=False)
    Family.written, Family.numbers = [], {}


def test_a_gauge_that_was_infinite_shows_a_number_again(server: None) -> None:
    """The freeness of an instance is, while it is drained, and it may be restored. A counter goes on."""
    from python_backends.triton_models.metrics_export import MetricsExport

    metrics, labels = Metrics(), (("instance", "0"),)
    export = MetricsExport(metrics)
    for freeness in (100.0, -math.inf, 50.0):
        metrics.gauge("gapless_instance_freeness_tokens", freeness, labels)
        metrics.count("gapless_dispatches_total", 2, labels)
        export.export()
        assert Family.numbers["gapless_instance_freeness_tokens"].value == freeness
    assert Family.numbers["gapless_dispatches_total"].value == 6


def test_the_first_export_has_the_start_of_the_launcher(server: None, launcher: LauncherRecord) -> None:
    """A start time of 0 before it would be two changes, where GaplessRestartsOften counts one restart."""
    from python_backends.triton_models.scheduler_metrics import SchedulerMetrics

    nothing: Any = None
    SchedulerMetrics(Metrics(), nothing, nothing)
    assert Family.numbers["gapless_start_time_seconds"].value > 1.7e9


def test_many_numbers_are_exported_some_at_a_time_and_the_time_when_they_were_read_is_the_last(
    server: None,
) -> None:
    from python_backends.triton_models.metrics_export import MetricsExport

    metrics = Metrics()
    export = MetricsExport(metrics)
    Family.written = []
    for number in range(25):
        metrics.gauge("gapless_instance_waiting", number, (("instance", str(number)),))
    export.begin()
    counts = []
    while export.is_under_way:
        metrics.gauge("gapless_queued_tokens", len(counts) + 1)  # the next export has it
        export.begin()
        export.go_on(10)
        counts.append(len(Family.written))
    assert counts == [10, 20, 26]
    assert Family.written[-1] == {"name": TIMESTAMP}
    export.export()
    assert Family.numbers["gapless_queued_tokens"].value == 3


def test_an_instance_costs_at_most_six_round_trips_a_second_and_none_while_nothing_changes(
    server: None,
) -> None:
    """With the most instances that there can be."""
    from python_backends.triton_models.metrics_export import MetricsExport

    metrics, router = Metrics(), Router(ClusterSettings(instances=MAX_INSTANCES))
    loads = InstanceLoads(metrics, router)
    for number in range(MAX_INSTANCES):
        loads.ready(number, LIMITS)
    loads.export()
    export = MetricsExport(metrics)
    trips_by_instance()
    loads.export()
    export.export()
    assert trips_by_instance() == {}
    request = Request(1, PROMPT, Sampling(10))
    for number in (0, MAX_INSTANCES - 1):
        said = Load(2, 1, 4, 50, 40, 100, 7, 60, step_s=0.02, num_adapters=3, last_submit=1)
        loads.heard(InstanceLoad(number, LIMITS, said))
        router.submitted(Stream(request, None, 4, 0), number, 2)
    loads.export()
    export.export()
    assert trips_by_instance() == {"0": 6, str(MAX_INSTANCES - 1): 6}


def test_evictions_are_counted_once_however_often_an_instance_is_started_again() -> None:
    metrics = Metrics()
    loads = InstanceLoads(metrics, None)
    for instance, evictions in ((0, 2), (1, 1), (0, 5), (0, 5), (0, 1), (1, 1)):  # 0 is another at the end
        loads.ready(instance, LIMITS)
        loads.heard(InstanceLoad(instance, LIMITS, Load(num_evictions=evictions)))
    assert metrics.counters["gapless_evictions_total", ()] == 7
