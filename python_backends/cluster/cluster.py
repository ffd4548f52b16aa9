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
from python_backends.watching.cluster_files import MoveOrder, MoveResult
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
        wanted: frozenset[int] | None = None,
    ) -> None:
        """`wanted`: the instances that should run, as an earlier scheduler model has said; None: nothing is
        known of one.
        """
        self._router = router
        self._table = table
        self._clock = clock
        self._every_s = router.policy.balance_every_s
        self._coordinator = Coordinator(table.submissions, metrics, router.step_s, clock)
        self._balancer = Balancer(settings, router, self._coordinator, table.submissions, metrics)
        self._asked = AskedMoves(settings, router, self._coordinator, self._balancer, table.submissions)
        self._scaling = Scaling(settings, router, metrics, wanted, clock)
        self._balanced_s = clock()

    @property
    def wanted(self) -> frozenset[int]:
        """The instances that should run."""
        return self._scaling.wanted

    @property
    def move_results(self) -> tuple[MoveResult, ...]:
        """What became of the latest orders to move a request."""
        return self._asked.results

    def ready(self, news: InstanceReady) -> None:
        """If the instance should not run, only the cluster may be told that it is ready."""
        self._scaling.ready(news.instance)
        if news.instance in self.wanted:
            self._coordinator.instance_ready(news.instance, news.hello)

    def lost(self, news: InstanceLost) -> None:
        """To be called after the stream table knows it. If the instance should not run, only the cluster may
        be told.
        """
        self._scaling.lost(news.instance)
        self._coordinator.instance_lost(news.instance)

    def heard(self, news: InstanceMove) -> None:
        self._coordinator.heard(news.instance, news.message)

    def order(self, drained: frozenset[int], num_instances: int | None = None) -> None:
        """`drained`, and no others, are to be empty: they get no request, and what they have goes elsewhere.
        `num_instances` should run; None: as many as the load or the settings say.
        """
        self._scaling.order(drained, num_instances)

    def ask_move(self, order: MoveOrder) -> None:
        """An order to move one request, which was not given before."""
        self._asked.ask(order, self._table.streams, self._clock())

    def look(self) -> None:
        """Once a turn, after the news."""
        now_s, num_moves = self._clock(), len(self._coordinator)
        self._coordinator.check(self._router.draining)
        self._asked.look(now_s)
        for instance in self._scaling.decide(self._is_empty):
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
