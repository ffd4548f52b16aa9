"""What the scheduler model does about its instances: it hears what they say, keeps the loads, the streams and
the moves informed, and writes on the board which of them should run.

Called by the streams thread alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from python_backends.cluster.cluster import Cluster
from python_backends.cluster.router import Router
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.settings import ClusterSettings
from python_backends.streams.table import StreamTable
from python_backends.triton_models.instance_loads import InstanceLoads
from python_backends.watching.board import Board, instance_name
from python_backends.watching.cluster_state import ClusterState
from python_backends.watching.launcher_record import read_restarts
from python_backends.watching.metrics import Metrics
from python_backends.wires.sessions import InstanceLost, InstanceMove, InstanceReady

LOOK_EVERY_S = 0.1  # at the launcher's counts, which takes 15 µs


class InstanceWatch:
    """Owns the cluster, if there can be several instances, and its record on the board."""

    def __init__(
        self,
        settings: ClusterSettings,
        board: Board,
        router: Router | None,
        table: StreamTable,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`router`: None where there is one instance. `clock` returns monotonic seconds."""
        self.loads = InstanceLoads(metrics, router)
        self.readers: dict[type, Callable[[Any], None]] = {
            InstanceLoad: self._on_load,
            InstanceMove: self._on_move,
            InstanceReady: self._on_ready,
            InstanceLost: self._on_lost,
        }
        self.cluster: Cluster | None = None  # None: there is one instance
        self._restarts: dict[int, int] = {}  # as the launcher had counted when each instance got ready
        self._looked_s = -math.inf
        self._clock = clock
        self._table = table
        self._board = board
        self._written: ClusterState | None = None  # on the board
        if router is not None:
            self.cluster = Cluster(settings, router, table, metrics, state=ClusterState.read(board))
            self._write()

    def ended(self) -> list[int]:
        """Instances that have ended, as the launcher says, which starts them again: their requests need not
        wait until the next life has said hello. To be called before what instances say is read.
        """
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return []
        self._looked_s = now_s
        counted, before = read_restarts(self._board)[1], self._restarts
        found = [number for number in before if counted.get(instance_name(number), 0) > before[number]]
        for number in found:
            del before[number]
        return found

    def look(self) -> None:
        """Once a turn, after the news."""
        if self.cluster is not None:
            self.cluster.look()
            self._write()

    def wait_s(self) -> float:
        """How long nothing will be due if nothing comes in."""
        return self.cluster.wait_s() if self.cluster is not None else float("inf")

    def _write(self) -> None:
        assert self.cluster is not None, "one instance has no such record"
        state = self.cluster.scaling.state
        if state != self._written:
            self.loads.follow(state.wanted)
            state.write(self._board)
            self._written = state

    def _is_wanted(self, instance: int) -> bool:
        """Whether it should run: what others say is of no interest, and their end is no loss."""
        return self.cluster is None or instance in self.cluster.wanted

    def _on_load(self, load: InstanceLoad) -> None:
        if self._is_wanted(load.number):
            self.loads.heard(load)

    def _on_ready(self, news: InstanceReady) -> None:
        counted = read_restarts(self._board)[1]
        self._restarts[news.instance] = counted.get(instance_name(news.instance), 0)
        if self._is_wanted(news.instance):
            self.loads.ready(news.instance, news.limits, news.hello.host, news.hello.pid)
            self._table.instance_ready(news.instance)
        if self.cluster is not None:
            self.cluster.ready(news)

    def _on_lost(self, news: InstanceLost) -> None:
        if self._is_wanted(news.instance):
            self.loads.lost(news.instance)
            self._table.instance_lost(news.instance, news.silent_s)
        if self.cluster is not None:
            self.cluster.lost(news)

    def _on_move(self, news: InstanceMove) -> None:
        if self.cluster is not None:
            self.cluster.heard(news)
