"""Several instances as one: the router, the moves, the balancer and the scaling, as the scheduler model uses
them.

Called by the streams thread alone. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from python_backends.cluster.asked_moves import AskedMoves
from python_backends.cluster.balancer import Balancer
from python_backends.cluster.router import Router
from python_backends.cluster.scaling import Scaling
from python_backends.moving.coordinator import Coordinator
from python_backends.settings import ClusterSettings
from python_backends.streams.table import StreamTable
from python_backends.watching.cluster_state import ClusterState
from python_backends.watching.metrics import Metrics
from python_backends.wires.sessions import InstanceLost, InstanceMove, InstanceReady


class Cluster:
    def __init__(
        self,
        settings: ClusterSettings,
        router: Router,
        table: StreamTable,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        state: ClusterState | None = None,
    ) -> None:
        """`state`: of an earlier scheduler model; None: there was none."""
        self._router = router
        self._table = table
        self._clock = clock
        self._every_s = router.policy.balance_every_s
        self._coordinator = Coordinator(table.submissions, metrics, router.step_s, clock)
        self._balancer = Balancer(settings, router, self._coordinator, table.submissions, metrics)
        asked = AskedMoves(settings, router, self._coordinator, self._balancer, table, clock)
        self.move = asked.carry_out  # the order to move one request
        self.scaling = Scaling(settings, router, metrics, state, clock)
        self._balanced_s = clock()

    @property
    def wanted(self) -> frozenset[int]:
        """The instances that should run."""
        return self.scaling.wanted

    def ready(self, news: InstanceReady) -> None:
        """If the instance should not run, only the cluster may be told that it is ready."""
        self.scaling.ready(news.instance)
        if news.instance in self.wanted:
            self._coordinator.instance_ready(news.instance, news.hello)

    def lost(self, news: InstanceLost) -> None:
        """To be called after the stream table knows it. If the instance should not run, only the cluster may
        be told.
        """
        self.scaling.lost(news.instance)
        self._coordinator.instance_lost(news.instance)

    def heard(self, news: InstanceMove) -> None:
        self._coordinator.heard(news.instance, news.message)

    def look(self) -> None:
        """Once a turn, after the news."""
        now_s, num_moves = self._clock(), len(self._coordinator)
        self._coordinator.check(self._router.draining)
        for instance in self.scaling.decide(self._is_empty):
            self._forget(instance)
        self._table.submissions.close(self._router.draining)
        has_ended = len(self._coordinator) < num_moves
        if now_s - self._balanced_s >= self._every_s or (has_ended and self._router.draining):
            self._balanced_s = now_s
            self._balancer.balance(self._table.streams, now_s)

    def wait_s(self) -> float:
        """How long nothing will be due if nothing comes in."""
        if not len(self._table):
            return float("inf")
        next_s = self._balanced_s + self._every_s - self._clock()
        return max(0.0, min(self._coordinator.wait_s(), next_s))

    def num_left(self, instance: int) -> int:
        """How many requests are there, move to it, or lack tokens of it, as far as we have heard."""
        num_there = self._table.submissions.num_needing(instance, self._table.streams)
        return num_there + self._coordinator.num_coming(instance)

    def _is_empty(self, instance: int) -> bool:
        """Whether no request is there, moves to or from it, or lacks tokens of it."""
        num_moves = self._coordinator.count(instance)
        return not num_moves and not self._table.submissions.is_needed(instance, self._table.streams)

    def _forget(self, instance: int) -> None:
        """It is empty and is ended: that is no loss."""
        self._router.lost(instance)
        self._table.submissions.forget(instance)
        self._coordinator.instance_lost(instance)
