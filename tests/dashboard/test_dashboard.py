"""Grafana's panels and Prometheus's alerts, asked of a real Prometheus that has watched a real load test."""

from __future__ import annotations

import http.client
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scraping import DEPLOY, Prometheus
from tests.support.server.serving import ROOT, Gapless, wait_for
from tests.support.server.toy_model import write_toy_model
from tests.support.shuffle import SHUFFLE
from tests.support.toy_engine import toy_settings

DASHBOARD = json.loads((DEPLOY / "grafana/gapless.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
needs_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus"), reason="no prometheus here (Debian's package of that name)"
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gapless, Prometheus]]:
    """Two instances while `make bench` loads them, a client leaves, one is refused, one of the instances
    dies, and requests move; and Prometheus, which saw it.
    """
    model = write_toy_model(tmp_path_factory.mktemp("toy-model"))
    settings = {
        **toy_settings(model, step_ms=5),
        "engine.slots": 4,
        "streams.max_open": 40,
        "scheduling.policy": "ours",
        "cluster.instances": 2,
        "cluster.policy": SHUFFLE,
    }
    with Gapless(**settings) as gapless:
        prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), gapless.metrics_port)
        try:
            load(gapless, prometheus)
            yield gapless, prometheus
        finally:
            prometheus.stop()


def load(gapless: Gapless, prometheus: Prometheus) -> None:
    wait_for(
        lambda: run_bench(gapless) and gapless.metrics()["gapless_length_prediction_error_tokens_count"] > 0,
        150,
    )
    crowd = gapless.grpc()
    for n in range(60):
        crowd.ask(f"{n}", text_input=f"client {n}", min_tokens=200, max_tokens=200)
    wait_for(lambda: gapless.metrics()['gapless_requests_total{outcome="refused"}'] > 0, 60)
    wait_for(lambda: prometheus.has_seen("max_over_time(gapless_requests_waiting[2m])", 10), 60)
    gapless.kill(gapless.instance_pid())
    wait_for(lambda: gapless.metrics()['gapless_restarts_total{process="instance-0"}'] == 1, 60)
    wait_for(lambda: gapless.metrics()["gapless_slots_busy"] == 8, 60)
    wait_for(lambda: prometheus.has_seen("gapless_slots_busy", 8), 60)
    crowd.cancel()
    crowd.close()
    wait_for(gapless.is_idle, 60)
    ended = gapless.metrics()["gapless_e2e_latency_seconds_count"]
    wait_for(lambda: prometheus.has_seen("gapless_e2e_latency_seconds_count", ended), 60)
    wait_for(lambda: prometheus.has_seen('gapless_requests_total{outcome="cancelled"}', 1), 60)
    few = gapless.grpc()  # slots are free, so that requests move
    for n in range(3):
        few.ask(f"{n}", text_input=f"client {n}", min_tokens=400, max_tokens=400)
    few.finish()
    few.close()
    moved = gapless.metrics()["gapless_migration_downtime_seconds_count"]
    assert moved
    wait_for(lambda: prometheus.has_seen("gapless_migration_downtime_seconds_count", moved), 60)


def run_bench(gapless: Gapless) -> bool:
    bench = [sys.executable, "-m", "client.bench", "--quick", "--url", f"127.0.0.1:{gapless.grpc_port}"]
    done = subprocess.run(bench, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return True


def asked(expression: str) -> str:
    """As Grafana would ask it."""
    return expression.replace("$__rate_interval", "1m").replace("$instance", ".*")


def declared(gapless: Gapless) -> set[str]:
    """Names of all metrics that the server speaks of."""
    connection = http.client.HTTPConnection("127.0.0.1", gapless.metrics_port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


def named(text: str) -> set[str]:
    return set(re.findall(r"\bgapless_\w+", text))


@needs_prometheus
@pytest.mark.parametrize(
    ("title", "expression"), QUERIES, ids=[f"{title}-{n}" for n, (title, _) in enumerate(QUERIES)]
)
def test_a_query_of_the_dashboard_returns_data(
    watched: tuple[Gapless, Prometheus], title: str, expression: str
) -> None:
    gapless, prometheus = watched
    assert named(expression) <= declared(gapless), f"{title} asks for what no server exports"
    values = prometheus.values(asked(expression))
    assert values, f"{title}: no data for {asked(expression)}"
    assert not any(math.isnan(value) for value in values.values())


@needs_prometheus
@pytest.mark.parametrize(
    ("query", "least"),
    [
        ('sum(gapless_requests_total{outcome=~"stop|length"})', 24),
        ('gapless_requests_total{outcome="refused"}', 1),
        ('gapless_requests_total{outcome="cancelled"}', 1),
        ('increase(gapless_restarts_total{process="instance-0"}[1m])', 1),
        ("max_over_time(gapless_slots_busy[2m])", 4),
        ("max_over_time(gapless_requests_waiting[2m])", 10),
        ('max_over_time(gapless_waiting{reason="slot"}[2m])', 10),
    ],
)
def test_prometheus_has_seen_what_happened(
    watched: tuple[Gapless, Prometheus], query: str, least: float
) -> None:
    (value,) = watched[1].values(query).values()
    assert value >= least


@needs_prometheus
def test_every_rule_can_be_evaluated_and_the_full_queue_rings(watched: tuple[Gapless, Prometheus]) -> None:
    gapless, prometheus = watched
    rules: list[dict[str, Any]] = [
        rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]
    ]
    assert len(rules) > 15
    assert {rule["health"] for rule in rules} == {"ok"}
    assert named((DEPLOY / "alerts.yml").read_text()) <= declared(gapless)
    wait_for(lambda: ringing(prometheus) >= {"GaplessRefuses", "GaplessRestarts"}, 60)
    assert not ringing(prometheus) & {"GaplessDown", "GaplessRestartsOften"}


def ringing(prometheus: Prometheus) -> set[str]:
    return {
        rule["name"]
        for group in prometheus.get("rules")["groups"]
        for rule in group["rules"]
        if rule.get("state") == "firing"
    }


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here (Debian's package prometheus)")
@pytest.mark.parametrize(
    "command",
    [
        ["check", "config", DEPLOY / "prometheus.yml"],
        ["test", "rules", Path(__file__).with_name("alerts_test.yml")],
    ],
    ids=["config", "alerts"],
)
def test_promtool_has_no_objection(command: list[str | Path]) -> None:
    done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_lie_side_by_side_and_none_is_empty() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["targets"] for panel in PANELS)
