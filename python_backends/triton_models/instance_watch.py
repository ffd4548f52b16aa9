"""What the scheduler model does about its instances: it hears what they say, keeps the loads, the streams and
the moves informed, follows the orders, and writes down what each carries and which of them should run.

Called by the streams thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from python_backends.cluster.cluster import Cluster
from python_backends.cluster.router import Router
from python_backends.settings import ClusterSettings
from python_backends.streams.table import StreamTable
from python_backends.triton_models.instance_loads import InstanceLoads
from python_backends.watching.cluster_files import ClusterOrders, ClusterStatus, MoveResult
from python_backends.watching.metrics import Metrics
from python_backends.wires.sessions import InstanceLoad, InstanceLost, InstanceMove, InstanceReady

ORDERS_EVERY_S = 0.2
MOST_REQUESTS = 50  # that the status names


class InstanceWatch:
    """Owns the cluster, if there can be several instances, and its two files."""

    def __init__(
        self,
        settings: ClusterSettings,
        run_directory: Path,
        router: Router | None,
        table: StreamTable,
        metrics: Metrics,
    ) -> None:
        """`router`: None where there is one instance."""
        self.loads = InstanceLoads(metrics, router)
        self.readers: dict[type, Callable[[Any], None]] = {
            InstanceLoad: self._on_load,
            InstanceMove: self._on_move,
            InstanceReady: self._on_ready,
            InstanceLost: self._on_lost,
        }
        self._table = table
        self._metrics = metrics
        self._orders, self._ordered_s = ClusterOrders(run_directory), 0.0
        self._status = ClusterStatus(run_directory)
        # in the file: the instances that should run, and what became of the orders to move
        self._written: tuple[frozenset[int], tuple[MoveResult, ...]] = (frozenset(), ())
        self._order = 0  # number of the last one that was read
        self._moved_by = time.monotonic_ns()  # number of the last order to move; older ones are not ours
        self._cluster: Cluster | None = None
        if router is not None:
            wanted = self._status.read_wanted(settings.most_instances)
            self._cluster = Cluster(settings, router, table, metrics, wanted=wanted)
            self.loads.follow(self._cluster.wanted)

    def take_orders(self) -> None:
        """If it is time for that. Raises OSError and ValueError."""
        now_s = time.monotonic()
        if self._cluster is not None and now_s - self._ordered_s >= ORDERS_EVERY_S:
            self._ordered_s = now_s
            orders = self._orders.read()
            self._cluster.order(orders.draining, orders.instances)
            is_new, self._order = orders.number != self._order, orders.number
            if orders.draining or is_new:
                self.write_status()  # the command that gave the order waits for it
            for move in orders.moves:
                if move.number > self._moved_by:
                    self._moved_by = move.number
                    self._cluster.ask_move(move)

    def look(self) -> None:
        """Once a turn, after the news. Raises OSError if the status can't be written."""
        if self._cluster is None:
            return
        self._cluster.look()
        if self._cluster.wanted != self._written[0]:
            self.loads.follow(self._cluster.wanted)
        if (self._cluster.wanted, self._cluster.move_results) != self._written:
            self.write_status()

    def wait_s(self) -> float:
        """How long nothing will be due if nothing comes in."""
        return self._cluster.wait_s() if self._cluster is not None else float("inf")

    def write_status(self) -> None:
        """Where there can be several instances. Raises OSError."""
        if self._cluster is not None:
            moves = self._metrics.sums("gapless_migrations_total", "outcome")
            wanted, results = self._cluster.wanted, self._cluster.move_results
            status = self.loads.status(self._cluster.num_left)
            status |= {"migrations": moves, "requests": self._requests(), "order": self._order}
            self._status.write({**status, "moved": [asdict(result) for result in results]})
            self._written = wanted, results

    def _requests(self) -> list[dict[str, int | float]]:
        """The open requests that came first."""
        now_ns = time.monotonic_ns()
        return [
            {
                "request": stream.request_id,
                "instance": stream.instance,
                "prompt_tokens": len(stream.request.prompt),
                "tokens": len(stream.tokens),
                "age_s": round((now_ns - stream.request.arrival_ns) / 1e9, 1),
            }
            for stream in islice(self._table.streams, MOST_REQUESTS)
        ]

    def _is_wanted(self, instance: int) -> bool:
        """Whether it should run: what others say is of no interest, and their end is no loss."""
        return self._cluster is None or instance in self._cluster.wanted

    def _on_load(self, news: InstanceLoad) -> None:
        if self._is_wanted(news.instance):
            self.loads.heard(news.instance, news.load)

    def _on_ready(self, news: InstanceReady) -> None:
        if self._is_wanted(news.instance):
            self.loads.ready(news.instance, news.limits, news.hello.host, news.hello.pid)
            self._table.instance_ready(news.instance)
        if self._cluster is not None:
            self._cluster.ready(news)

    def _on_lost(self, news: InstanceLost) -> None:
        if self._is_wanted(news.instance):
            self.loads.lost(news.instance)
            self._table.instance_lost(news.instance, news.silent_s)
        if self._cluster is not None:
            self._cluster.lost(news)

    def _on_move(self, news: InstanceMove) -> None:
        if self._cluster is not None:
            self._cluster.heard(news)
