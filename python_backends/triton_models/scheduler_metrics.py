"""What the scheduler model shows of itself once a second: gauges, the counts of the launcher, and a line of
log about why requests wait.

Called by the streams thread alone.
"""

from __future__ import annotations

import logging
import time

from python_backends.nouns.request import WaitReason
from python_backends.streams.table import StreamTable
from python_backends.triton_models.instance_loads import InstanceLoads
from python_backends.triton_models.metrics_export import MetricsExport
from python_backends.watching.board import Board
from python_backends.watching.launcher_record import read_restarts
from python_backends.watching.metrics import Metrics

log = logging.getLogger("gapless.scheduler")

LONG_WAIT_S = 10.0  # requests wait for longer: the log says why
TELL_EVERY_S = 60.0
TRIPS_A_TURN = 20  # to the server: 1 to 2 ms, in which no stream gets a token


class SchedulerMetrics:
    def __init__(self, metrics: Metrics, table: StreamTable, loads: InstanceLoads) -> None:
        self._metrics = metrics
        self._table = table
        self._loads = loads
        self._take_launchers()  # before the first export: a start time of 0 would count as a restart
        self._export = MetricsExport(metrics)
        self._tell_at_s = time.monotonic() + LONG_WAIT_S

    @property
    def is_under_way(self) -> bool:
        """Whether numbers of the last second are still to be exported."""
        return self._export.is_under_way

    def begin(self) -> None:
        """Sets the gauges, and begins to export what has changed."""
        gauge = self._metrics.gauge
        self._loads.export()
        self._take_launchers()
        gauge("gapless_requests_waiting", max(0, len(self._table) - self._loads.num_running))
        waiting = self._table.waiting(self._loads.wait_reasons)
        for reason, count in waiting.items():
            gauge("gapless_waiting", count, (("reason", reason.value),))
        self._tell_why(waiting)
        gauge("gapless_queued_tokens", self._table.num_queued_tokens)
        gauge("gapless_coalescing_seconds", self._table.delivery.interval_s)
        self._export.begin()

    def go_on(self) -> None:
        """Exports some more numbers: with many instances all of them would take too long for one turn."""
        began_ns = time.monotonic_ns()
        self._export.go_on(TRIPS_A_TURN)
        self._table.server_answered(began_ns)

    def _take_launchers(self) -> None:
        """The counts of the launcher, and when it was started."""
        start_time_s, restarts = read_restarts(Board.inherited())
        self._metrics.gauge("gapless_start_time_seconds", start_time_s)
        for process, count in restarts.items():
            self._metrics.total("gapless_restarts_total", count, (("process", process),))

    def _tell_why(self, waiting: dict[WaitReason, int]) -> None:
        """Logs why requests wait, if there have been some for LONG_WAIT_S, and then once a minute."""
        now_s = time.monotonic()
        if not any(waiting.values()):
            self._tell_at_s = now_s + LONG_WAIT_S
        elif now_s >= self._tell_at_s:
            self._tell_at_s = now_s + TELL_EVERY_S
            reasons = ", ".join(f"{count} {reason}" for reason, count in waiting.items() if count)
            log.warning(  # the processes of Triton's models print no less than warnings
                "%d requests wait for a slot: %s (docs/waiting.md)",
                sum(waiting.values()),
                reasons,
            )
