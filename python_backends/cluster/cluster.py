"""Several instances as one: the router, the moves and the balancer, as the scheduler model uses them.

Called by the streams thread alone. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from python_backends.cluster.balancer import Balancer
from python_backends.cluster.moves import Moves
from python_backends.cluster.router import Router
from python_backends.settings import ClusterSettings
from python_backends.streams.table import StreamTable
from python_backends.watching.metrics import Metrics
from python_backends.wires import InstanceLost, InstanceMove, InstanceReady


class Cluster:
    def __init__(
        self,
        settings: ClusterSettings,
        router: Router,
        table: StreamTable,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._table = table
        self._clock = clock
        self._every_s = settings.balance_every_s
        self._moves = Moves(table.submissions, metrics, router.step_s, clock)
        self._balancer = Balancer(settings, router, self._moves, table.submissions, metrics)
        self._balanced_s = clock()

    def ready(self, news: InstanceReady) -> None:
        self._moves.instance_ready(news.instance, news.hello)

    def lost(self, news: InstanceLost) -> None:
        """To be called after the stream table knows it."""
        self._moves.instance_lost(news.instance)

    def heard(self, news: InstanceMove) -> None:
        self._moves.heard(news.instance, news.message)

    def drain(self, instances: frozenset[int]) -> None:
        """These, and no others, are to be empty: they get no request, and what they have goes elsewhere."""
        self._router.draining = instances

    def look(self) -> None:
        """Once a turn, after the news."""
        now_s, num_moves = self._clock(), len(self._moves)
        self._moves.look()
        has_ended = len(self._moves) < num_moves
        if now_s - self._balanced_s >= self._every_s or (has_ended and self._router.draining):
            self._balanced_s = now_s
            self._balancer.balance(self._table.streams, now_s)

    def wait_s(self) -> float:
        """How long nothing will be due if nothing comes in."""
        if not len(self._table):
            return float("inf")
        next_s = self._balanced_s + self._every_s - self._clock()
        return max(0.0, min(self._moves.wait_s(), next_s))
