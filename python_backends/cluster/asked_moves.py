"""Carries out the orders of operators to move one request, several at the same time.

Called by the streams thread alone.
"""

from __future__ import annotations

from collections.abc import Callable

from python_backends.cluster.balancer import Balancer
from python_backends.cluster.router import Router
from python_backends.moving.coordinator import Coordinator
from python_backends.moving.move import MoveOutcome, MoveReason
from python_backends.nouns.order import Progress, RefusedOrderError
from python_backends.nouns.request import Finish
from python_backends.settings import ClusterSettings
from python_backends.streams.stream import NO_INSTANCE, Stream
from python_backends.streams.table import StreamTable

OFF = "cluster.move is off"
JUST_LOST = "an instance has just died, and requests move again in some seconds"
OTHER_MODEL = "the two instances have different models or settings"
NOT_NOW = "its prompt is being computed, or it moves already: try again"


class AskedMoves:
    def __init__(
        self,
        settings: ClusterSettings,
        router: Router,
        coordinator: Coordinator,
        balancer: Balancer,
        table: StreamTable,
        clock: Callable[[], float],
    ) -> None:
        self._is_allowed = settings.move != "off"
        self._router = router
        self._coordinator = coordinator
        self._balancer = balancer
        self._table = table
        self._clock = clock

    def carry_out(self, request_id: int, instance: int) -> Progress:
        request, now_s = f"request {request_id}", self._clock()
        stream = self._table.find(request_id)
        if stream is None or stream.finish != Finish.RUNNING:
            raise RefusedOrderError(f"there is no open {request}")
        if refusal := self._refusal(stream, instance):
            raise RefusedOrderError(f"{request} can't move: {refusal}")
        move = None
        if stream.seated:
            move = self._balancer.move(stream, instance, MoveReason.ASKED, now_s)
        else:
            self._balancer.send(stream, instance, MoveReason.ASKED, now_s)
        if move is None:
            return f"{request} was submitted to instance {instance}, which computes its tokens again"
        while move.outcome is None:
            yield f"{request} is on its way to instance {instance}"
        if move.outcome is not MoveOutcome.DONE:
            raise RefusedOrderError(f"{request} did not move to instance {instance}: {move.outcome}")
        took_ms = 1000 * (move.ended_s - move.began_s)
        return f"{request} is in instance {instance} after {took_ms:.0f} ms, with its KV blocks"

    def _refusal(self, stream: Stream, instance: int) -> str:
        """Why it can't move there now; empty if it can."""
        loads = {load.number: load for load in self._router.takers}
        source = next((load for load in self._router.loads if load.number == stream.instance), None)
        if instance not in loads:
            return f"instance {instance} gets no requests now"
        if stream.instance == instance:
            return f"it is in instance {instance} already"
        if not self._is_allowed:
            return OFF
        is_calm = self._table.submissions.quarantine.is_calm(self._table.streams)
        if stream.instance == NO_INSTANCE or not is_calm:
            return JUST_LOST
        if source is None or source.limits.fingerprint != loads[instance].limits.fingerprint:
            return OTHER_MODEL
        return NOT_NOW if stream.seated and not self._coordinator.can_leave(stream) else ""
