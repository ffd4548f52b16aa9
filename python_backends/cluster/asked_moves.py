"""Carries out the orders to move one request (`launcher.control move`), several at the same time.

Called by the streams thread alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from python_backends.cluster.balancer import Balancer
from python_backends.cluster.router import Router
from python_backends.moving.coordinator import Coordinator
from python_backends.moving.move import Move, MoveOutcome, MoveReason
from python_backends.nouns.request import Finish
from python_backends.settings import ClusterSettings
from python_backends.streams.stream import NO_INSTANCE, Stream
from python_backends.streams.submissions import Submissions
from python_backends.watching.cluster_files import MoveOrder, MoveResult

OFF = "cluster.move is off"
JUST_LOST = "an instance has just died, and requests move again in some seconds"
OTHER_MODEL = "the two instances have different models or settings"
MOST_RESULTS = 256  # that are kept; each command reads its own within a second
NOT_NOW = "its prompt is being computed, or it moves already: try again"


class AskedMoves:
    """Owns the orders that are carried out, and what became of the latest ones."""

    def __init__(
        self,
        settings: ClusterSettings,
        router: Router,
        coordinator: Coordinator,
        balancer: Balancer,
        submissions: Submissions,
    ) -> None:
        self.results: tuple[MoveResult, ...] = ()  # the latest ones
        self._is_allowed = settings.move != "off"
        self._router = router
        self._coordinator = coordinator
        self._balancer = balancer
        self._submissions = submissions
        self._under_way: list[_UnderWay] = []

    def ask(self, order: MoveOrder, streams: Collection[Stream], now_s: float) -> None:
        """Begins to carry out an order that has not been given before. `streams` are all."""
        stream = next((each for each in streams if each.request_id == order.request_id), None)
        if stream is None or stream.finish != Finish.RUNNING:
            self._answer(order, False, f"there is no open request {order.request_id}")
        elif refusal := self._refusal(stream, order.instance, streams):
            self._answer(order, False, f"request {order.request_id} can't move: {refusal}")
        else:
            self._begin(order, stream, now_s)

    def look(self, now_s: float) -> None:
        """Once a turn: which of the moves have ended."""
        ended = [each for each in self._under_way if each.move.outcome is not None]
        for each in ended:
            self._under_way.remove(each)
            self._tell(each.order, each.move, now_s)

    def _tell(self, order: MoveOrder, move: Move, now_s: float) -> None:
        if move.outcome is MoveOutcome.DONE:
            took_ms = 1000 * (now_s - move.began_s)
            text = f"is in instance {move.destination} after {took_ms:.0f} ms, with its KV blocks"
        else:
            text = f"did not move to instance {move.destination}: {move.outcome}"
        self._answer(order, move.outcome is MoveOutcome.DONE, f"request {order.request_id} {text}")

    def _refusal(self, stream: Stream, instance: int, streams: Collection[Stream]) -> str:
        """Why it can't move there now; empty if it can."""
        views = {view.number: view for view in self._router.takers}
        source = next((view for view in self._router.views if view.number == stream.instance), None)
        if instance not in views:
            return f"instance {instance} gets no requests now"
        if stream.instance == instance:
            return f"it is in instance {instance} already"
        if not self._is_allowed:
            return OFF
        if stream.instance == NO_INSTANCE or not self._submissions.quarantine.is_calm(streams):
            return JUST_LOST
        if source is None or source.limits.fingerprint != views[instance].limits.fingerprint:
            return OTHER_MODEL
        return NOT_NOW if stream.seated and not self._coordinator.can_leave(stream) else ""

    def _begin(self, order: MoveOrder, stream: Stream, now_s: float) -> None:
        move = None
        if stream.seated:
            move = self._balancer.move(stream, order.instance, MoveReason.ASKED, now_s)
        else:
            self._balancer.send(stream, order.instance, MoveReason.ASKED, now_s)
        if move is not None:
            self._under_way.append(_UnderWay(order, move))
            return
        text = f"was submitted to instance {order.instance}, which computes its tokens again"
        self._answer(order, True, f"request {order.request_id} {text}")

    def _answer(self, order: MoveOrder, is_done: bool, text: str) -> None:
        self.results = (*self.results, MoveResult(order.number, is_done, text))[-MOST_RESULTS:]


@dataclass(frozen=True, slots=True)
class _UnderWay:
    order: MoveOrder
    move: Move
