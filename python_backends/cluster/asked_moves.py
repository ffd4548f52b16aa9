"""Carries out the orders to move one request (`launcher.control move`), one after the other.

Called by the streams thread alone. Tested in tests/pure/test_moves.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from python_backends.cluster.balancer import Balancer
from python_backends.cluster.move import Move, MoveOutcome, MoveReason, Phase
from python_backends.cluster.moves import Moves
from python_backends.cluster.router import Router
from python_backends.nouns.request import Finish
from python_backends.settings import ClusterSettings
from python_backends.streams.stream import NO_INSTANCE, Stream
from python_backends.streams.submissions import Submissions
from python_backends.watching.cluster_files import MoveOrder, MoveResult

OFF = "cluster.move is off"
JUST_LOST = "an instance has just died, and requests move again in some seconds"
OTHER_MODEL = "the two instances have different models or settings"
NOT_NOW = "its prompt is being computed, or it moves already: try again"


class AskedMoves:
    """Owns the last order and what became of it."""

    def __init__(
        self,
        settings: ClusterSettings,
        router: Router,
        moves: Moves,
        balancer: Balancer,
        submissions: Submissions,
    ) -> None:
        self.result: MoveResult | None = None  # of the last order; None while it is carried out
        self._is_allowed = settings.move != "off"
        self._router = router
        self._moves = moves
        self._balancer = balancer
        self._submissions = submissions
        self._under_way: _UnderWay | None = None

    def ask(self, order: MoveOrder, streams: Collection[Stream], now_s: float) -> None:
        """Begins to carry out an order that has not been given before. `streams` are all."""
        self.result = self._under_way = None
        stream = next((each for each in streams if each.request_id == order.request_id), None)
        if stream is None or stream.finish != Finish.RUNNING:
            self._answer(order, False, f"there is no open request {order.request_id}")
        elif refusal := self._refusal(stream, order.instance, streams):
            self._answer(order, False, f"request {order.request_id} can't move: {refusal}")
        else:
            self._begin(order, stream, now_s)

    def look(self, now_s: float) -> None:
        """Once a turn: whether the move has ended."""
        under_way = self._under_way
        if under_way is None or under_way.move.phase not in (Phase.DONE, Phase.OFF):
            return
        self._under_way, move = None, under_way.move
        if move.outcome is MoveOutcome.DONE:
            took_ms = 1000 * (now_s - move.began_s)
            text = f"is in instance {move.destination} after {took_ms:.0f} ms, with its KV blocks"
        else:
            text = f"did not move to instance {move.destination}: {move.outcome}"
        order = under_way.order
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
        return NOT_NOW if stream.seated and not self._moves.can_leave(stream) else ""

    def _begin(self, order: MoveOrder, stream: Stream, now_s: float) -> None:
        move = None
        if stream.seated:
            move = self._balancer.move(stream, order.instance, MoveReason.ASKED, now_s)
        else:
            self._balancer.send(stream, order.instance, MoveReason.ASKED, now_s)
        if move is not None:
            self._under_way = _UnderWay(order, move)
            return
        text = f"was submitted to instance {order.instance}, which computes its tokens again"
        self._answer(order, True, f"request {order.request_id} {text}")

    def _answer(self, order: MoveOrder, is_done: bool, text: str) -> None:
        self.result = MoveResult(order.number, is_done, text)


@dataclass(frozen=True, slots=True)
class _UnderWay:
    order: MoveOrder
    move: Move
