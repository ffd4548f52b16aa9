"""What the scheduler model does about instances: which of them it listens to, and what it writes down."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from python_backends.cluster.router import Router
from python_backends.nouns.messages import Hello, Load, TrainingLoad
from python_backends.nouns.request import ModelLimits
from python_backends.settings import ClusterSettings, StreamSettings
from python_backends.streams.table import StreamTable
from python_backends.triton_models.instance_watch import InstanceWatch
from python_backends.watching.cluster_files import (
    ORDERS,
    STATUS,
    ClusterOrders,
    ClusterStatus,
    MoveOrder,
    Orders,
)
from python_backends.watching.metrics import Metrics
from python_backends.wires.sessions import InstanceLoad, InstanceLost, InstanceReady

LIMITS = ModelLimits(max_model_tokens=64, vocab_size=100, num_slots=4, num_blocks=100, block_tokens=16)


class Watch:
    def __init__(self, directory: Path, **cluster: float) -> None:
        settings = ClusterSettings(**cluster)  # type: ignore[arg-type]
        self.metrics, self.directory = Metrics(), directory
        router = Router(settings) if settings.most_instances > 1 else None
        self.table = StreamTable(StreamSettings(), lambda: 0, lambda words: 4, self.metrics, router)
        self.watch = InstanceWatch(settings, directory, router, self.table, self.metrics)
        self.watch._ordered_s = float("-inf")
        self.look()

    def look(self) -> None:
        self.watch.take_orders()
        self.watch._ordered_s = float("-inf")  # the next look is one in time again
        self.watch.look()

    def hear(self, *news: Any) -> None:
        for each in news:
            self.watch.readers[type(each)](each)
        self.look()

    def get_ready(self, *numbers: int) -> None:
        for number in numbers:
            self.hear(InstanceReady(number, Hello(LIMITS)))
            self.hear(InstanceLoad(number, Load(num_slots=4, num_blocks=100)))

    def run(self) -> list[int]:
        """As the launcher reads it."""
        numbers: list[int] = json.loads((self.directory / STATUS).read_text())["run"]
        return numbers

    def states(self) -> dict[str, float]:
        self.watch.loads.export()
        return {
            labels[0][1]: value
            for (name, labels), value in self.metrics.gauges.items()
            if name == "gapless_instances" and value
        }

    @property
    def num_losses(self) -> float:
        return self.metrics.counters["gapless_instance_losses_total", ()]


def test_which_instances_should_run_is_written_down_at_once(tmp_path: Path) -> None:
    watch = Watch(tmp_path, instances=2)
    assert watch.run() == [0, 1]
    assert watch.states() == {"starting": 2}
    watch.get_ready(0)
    assert watch.states() == {"starting": 1, "ready": 1}
    watch.get_ready(1)
    ClusterOrders(tmp_path).scale(1)
    watch.look()
    watch.look()
    assert watch.run() == [0]
    assert watch.states() == {"ready": 1}


def test_the_end_of_an_instance_that_should_not_run_is_no_loss(tmp_path: Path) -> None:
    watch = Watch(tmp_path, instances=2)
    watch.get_ready(0, 1)
    ClusterOrders(tmp_path).scale(1)
    watch.look()
    watch.look()
    watch.hear(InstanceLoad(1, Load(num_running=3, num_slots=4)))
    assert watch.watch.loads.num_running == 0, "what it says is of no interest"
    watch.hear(InstanceLost(1))
    assert watch.num_losses == 0
    ClusterOrders(tmp_path).scale(2)
    watch.look()
    assert watch.run() == [0, 1]
    assert watch.states() == {"starting": 1, "ready": 1}, "it is another one"
    watch.get_ready(1)
    watch.hear(InstanceLost(1))
    assert watch.num_losses == 1, "this one should run"
    assert watch.states() == {"lost": 1, "ready": 1}


def test_the_next_scheduler_model_takes_over_which_instances_should_run(tmp_path: Path) -> None:
    ClusterOrders(tmp_path).scale(2)
    ClusterStatus(tmp_path).write({"run": [0, 2]})
    watch = Watch(tmp_path, instances=1, max_instances=3)
    assert watch.run() == [0, 2]
    watch.get_ready(0, 1, 2)
    assert watch.states() == {"ready": 2}, "number 1 is about to end"
    assert watch.table.submissions.instances.ready == [0, 2]
    (tmp_path / STATUS).write_text("{")
    (tmp_path / ORDERS).unlink()
    assert Watch(tmp_path, instances=1, max_instances=3).run() == [0]


def test_an_order_to_move_is_carried_out_once_and_its_result_is_written(tmp_path: Path) -> None:
    ClusterOrders(tmp_path).move(17, 1)
    watch = Watch(tmp_path, instances=2)
    watch.get_ready(0, 1)
    assert ClusterStatus(tmp_path).read()["moved"] == [], "an earlier scheduler model got this order"
    orders = [ClusterOrders(tmp_path).move(number, 1) for number in (18, 19)]
    watch.look()
    texts = ["there is no open request 18", "there is no open request 19"]
    moved = [
        {"number": number, "is_done": False, "text": text} for number, text in zip(orders, texts, strict=True)
    ]
    assert ClusterStatus(tmp_path).read()["moved"] == moved
    watch.look()
    assert ClusterStatus(tmp_path).read()["moved"] == moved
    assert ClusterStatus(tmp_path).read()["requests"] == []


def test_the_seconds_of_all_instances_are_added_up(tmp_path: Path) -> None:
    now_s = 0.0
    watch = Watch(tmp_path, instances=3)
    loads, name = watch.watch.loads, ("gapless_instance_seconds_total", ())
    loads._clock = lambda: now_s
    loads._counted_s, watch.metrics.counters[name] = 0.0, 0.0
    now_s = 10.0
    loads.follow(frozenset({0}))
    now_s = 15.0
    loads.export()
    assert watch.metrics.counters[name] == 3 * 10 + 5


def test_a_heartbeat_of_another_version_hurts_nothing(tmp_path: Path) -> None:
    """Its token gaps and jobs are counted by other bounds and states."""
    watch = Watch(tmp_path, instances=2)
    watch.get_ready(0, 1)
    watch.hear(InstanceLoad(0, Load(num_running=3, gap_counts=(1, 2), training=TrainingLoad(jobs=(4,)))))
    watch.watch.loads.export()
    assert watch.metrics.gauges["gapless_requests_running", ()] == 3
    assert watch.metrics.gauges["gapless_finetuning_jobs", (("status", "queued"),)] == 4
    assert sum(watch.metrics.histograms["gapless_token_gap_seconds"].counts) == 0


def test_orders_keep_each_other(tmp_path: Path) -> None:
    orders = ClusterOrders(tmp_path)
    assert orders.read() == Orders()
    orders.scale(3)
    orders.drain(frozenset({1}))
    moved = orders.move(17, 1)
    number = orders.drain(frozenset({2}))
    assert orders.read() == Orders(frozenset({1, 2}), 3, (MoveOrder(moved, 17, 1),), number)
    orders.scale(None)
    number = orders.restore(frozenset({1}))
    assert orders.read() == Orders(frozenset({2}), None, (MoveOrder(moved, 17, 1),), number)


def test_orders_that_are_given_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    orders, numbers = ClusterOrders(tmp_path), range(40)
    with ThreadPoolExecutor(8) as threads:
        moves = [threads.submit(orders.move, number, 0) for number in numbers]
        drains = [threads.submit(orders.drain, frozenset({number})) for number in numbers]
        scaled = threads.submit(orders.scale, 3)
    written = orders.read()
    assert (written.draining, written.instances) == (set(numbers), 3)
    assert sorted(move.request_id for move in written.moves) == list(numbers)
    given = [each.result() for each in (*moves, *drains, scaled)]
    assert len({*given}) == len(given)
    assert written.number == max(given)
    assert {path.name for path in tmp_path.iterdir()} == {ORDERS, "cluster-orders.lock"}


def test_the_last_instance_is_not_drained_whoever_asks_first(tmp_path: Path) -> None:
    orders = ClusterOrders(tmp_path)
    orders.drain(frozenset({0}), {0, 1})
    with pytest.raises(ValueError, match="instance 1 is the last one that gets requests"):
        orders.drain(frozenset({1}), {0, 1})
    assert orders.read().draining == {0}


def test_a_single_instance_has_no_files(tmp_path: Path) -> None:
    watch = Watch(tmp_path, instances=1)
    watch.get_ready(0)
    watch.watch.write_status()
    assert list(tmp_path.iterdir()) == []
    assert watch.states() == {"ready": 1}
