"""The scheduler model's part of live migration: it asks for a move, and decides which instance has the
request.

    RESERVES ── Reserved ─► COPIES ── Suspended ─► SUSPENDED ── Adopted ─► done
        │ Refused              │ MoveEnded            │ no Adopted in time, or the destination is lost
        ▼                      ▼                      ▼
       off                    off                    off, and the source goes on with it as another life

Only the scheduler model decides which instance has a request: at every index of the answer, tokens of one
life are accepted and all others dropped (`Stream.accepts`). So a message that is lost or late costs work, but
no token. A request that ends, or whose instance is lost, ends its move.

Called by the streams thread alone.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

import numpy as np

from python_backends.moving.move import Move, MoveOutcome, MoveReason, Phase
from python_backends.moving.timeouts import BACK_OFF_S, LEAST_ADOPT_S, OTHERS_FIRST_S, WHOLE_MOVE_S
from python_backends.nouns.messages import Cancel, Hello
from python_backends.nouns.moves import (
    AbortMove,
    Adopted,
    End,
    MoveEnded,
    MoveOut,
    Refused,
    Reserve,
    Reserved,
    Resume,
    Suspended,
)
from python_backends.nouns.request import Finish
from python_backends.streams.stream import Stream
from python_backends.streams.submissions import Submissions
from python_backends.watching.metrics import Metrics

MAX_LATE = 256  # ended moves that are remembered
NO_FAILURES = (MoveOutcome.DONE, MoveOutcome.ENDED)
OUTCOMES: dict[End, MoveOutcome] = {
    "ended": MoveOutcome.ENDED,
    "refused": MoveOutcome.REFUSED,
    "too_slow": MoveOutcome.TOO_SLOW,
    "lost": MoveOutcome.TIMEOUT,
    "gone": MoveOutcome.TIMEOUT,
}


class Coordinator:
    """Owns the moves that are under way. What a stream says of its instance is changed through
    `submissions`.
    """

    def __init__(
        self,
        submissions: Submissions,
        metrics: Metrics,
        step_s: Callable[[int], float],
        clock: Callable[[], float],
    ) -> None:
        """`step_s`: of an instance; `clock` returns monotonic seconds."""
        self._submissions = submissions
        self._metrics = metrics
        self._step_s = step_s
        self._clock = clock
        self._moves: dict[int, Move] = {}  # by number, until Suspended or Adopted
        self._counts: Counter[int] = Counter()  # of these, by instance
        self._moving: set[int] = set()  # request ids of these
        self._late: OrderedDict[int, Move] = OrderedDict()  # that have ended; oldest first
        self._settling: dict[int, Move] = {}  # done, but no token has come from the destination
        self._hellos: dict[int, Hello] = {}  # of instances that are ready
        self._not_before_s: dict[tuple[int, int], float] = {}  # by source and destination
        self._num_moves = 0

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._moves)

    def __contains__(self, stream: Stream) -> bool:
        return stream.request_id in self._moving

    def count(self, instance: int) -> int:
        """How many requests are about to leave it or to come."""
        return self._counts[instance]

    def num_coming(self, instance: int) -> int:
        """How many requests are about to come to it."""
        return sum(move.destination == instance for move in self._moves.values())

    def may_copy(self, source: int, destination: int) -> bool:
        """Whether both write KV blocks in the same way."""
        both = [self._hellos.get(instance, Hello()) for instance in (source, destination)]
        return all(each.blocks_at for each in both) and both[0].kv_format == both[1].kv_format

    def may_try(self, source: int, destination: int) -> bool:
        """Whether no move between them has failed just now."""
        return self._not_before_s.get((source, destination), 0.0) <= self._clock()

    def failed_lately(self) -> set[int]:
        """The requests, by their ids, of moves that have failed in the last OTHERS_FIRST_S."""
        since_s = self._clock() - OTHERS_FIRST_S
        failed = (move for move in self._late.values() if move.outcome not in NO_FAILURES)
        return {move.stream.request_id for move in failed if move.ended_s > since_s}

    def can_leave(self, stream: Stream) -> bool:
        """Whether the stream runs in a slot and can move with its blocks: it has a token that was computed in
        this slot, so all before it are computed, and does not move yet.
        """
        is_running = stream.finish == Finish.RUNNING and stream.seated
        return is_running and len(stream.tokens) > stream.num_prefilled and stream not in self

    # --- what happens

    def instance_ready(self, instance: int, hello: Hello) -> None:
        self._hellos[instance] = hello

    def instance_lost(self, instance: int) -> None:
        """To be called after the submissions know it: streams of `instance` have no instance then."""
        self._hellos.pop(instance, None)
        for move in list(self._moves.values()):
            if move.destination == instance:
                self._give_up(move, MoveOutcome.DESTINATION_LOST)
            elif move.source == instance:
                self._give_up(move, MoveOutcome.SOURCE_LOST)

    def start(self, stream: Stream, destination: int, reason: MoveReason) -> Move:
        """Begins to move a stream that can leave its instance to another one that reads its KV blocks."""
        self._num_moves += 1
        move = Move(
            number=self._num_moves,
            stream=stream,
            source=stream.instance,
            destination=destination,
            reason=reason,
            source_request_epoch=stream.request_epoch,
            request_epoch=self._submissions.new_request_epoch(stream),
            began_s=self._clock(),
        )
        self._moves[move.number] = move
        self._counts.update((move.source, move.destination))
        self._moving.add(stream.request_id)
        delivered = np.array(stream.tokens, np.int32)
        age_s = max(0.0, move.began_s - stream.request.arrival_ns / 1e9)  # the same clock
        reserve = Reserve(move.number, stream.request, delivered, move.request_epoch, age_s)
        self._submissions.tell(destination, reserve)
        return move

    def heard(self, instance: int, message: Reserved | Refused | Suspended | Adopted | MoveEnded) -> None:
        """What an instance says of a move, which may have ended."""
        move = self._moves.get(message.move)
        if move is None or not move.is_current:
            self._heard_late(instance, message)
        elif isinstance(message, Reserved):
            self._reserved(move, message)
        elif isinstance(message, Refused):
            self._end(move, MoveOutcome.REFUSED)
        elif isinstance(message, Suspended):
            self._suspended(move, message)
        elif isinstance(message, Adopted):
            self._adopted(move, message)
        else:
            self._ended(move, instance, message)

    def check(self, closed: frozenset[int] = frozenset()) -> None:
        """Once a turn: which requests have ended, and which moves take too long. No request enters the
        instances `closed`, unless it is suspended for that already.
        """
        now_s = self._clock()
        for move in list(self._moves.values()):
            if not move.is_current:
                self._give_up(move, MoveOutcome.ENDED)
            elif now_s >= move.due_s or now_s - move.began_s >= WHOLE_MOVE_S:
                self._give_up(move, MoveOutcome.TIMEOUT)
            elif move.destination in closed and move.phase is not Phase.SUSPENDED:
                self._give_up(move, MoveOutcome.REFUSED)
        for move in list(self._settling.values()):
            self._check_first_token(move, now_s)

    def wait_s(self) -> float:
        """How long nothing will be due if nothing comes in."""
        due_s = min((move.due_s for move in self._moves.values()), default=float("inf"))
        return max(0.0, due_s - self._clock())

    # --- inside

    def _reserved(self, move: Move, message: Reserved) -> None:
        if move.phase is not Phase.RESERVES:
            return
        move.phase, move.copies_since_s = Phase.COPIES, self._clock()
        out = MoveOut(
            move.number,
            move.stream.request_id,
            move.source_request_epoch,
            self._hellos[move.destination].blocks_at,
            message.num_found_blocks,
        )
        self._submissions.tell(move.source, out)

    def _suspended(self, move: Move, message: Suspended) -> None:
        now_s = self._clock()
        move.phase, move.suspended_s, move.num_tokens = Phase.SUSPENDED, now_s, message.num_tokens
        step_s = max(self._step_s(move.source), self._step_s(move.destination))
        # the last blocks are few: copying them can hardly take as long as copying all before
        copy_s = now_s - move.copies_since_s
        move.due_s = now_s + max(2 * step_s, copy_s, LEAST_ADOPT_S)

    def _adopted(self, move: Move, message: Adopted) -> None:
        if message.request_epoch != move.request_epoch:
            return
        stream = move.stream
        self._submissions.moved(stream, move.destination, move.request_epoch, message.first_index)
        if stream.prediction is not None:
            self._submissions.predicted(stream)
        move.num_tokens, move.suspended_s = message.first_index, min(move.suspended_s, self._clock())
        self._settling[move.number] = move
        self._metrics.observe("gapless_migration_seconds", self._clock() - move.began_s)
        self._end(move, MoveOutcome.DONE)

    def _ended(self, move: Move, instance: int, message: MoveEnded) -> None:
        """The move is off. After Suspended the source says so only if it goes on with the request, as the
        same life.
        """
        if instance == move.source:
            self._drop_at_destination(move)
            self._end(move, OUTCOMES[message.why])
        else:
            self._give_up(move, OUTCOMES[message.why])

    def _give_up(self, move: Move, outcome: MoveOutcome) -> None:
        """The request stays at the source if it runs there. If the source has stopped already, it goes on as
        another life, so that what the destination may have computed is dropped.
        """
        self._drop_at_destination(move)
        if move.phase is Phase.SUSPENDED and move.is_current:
            self._resume(move)
        else:
            self._submissions.tell(move.source, AbortMove(move.number))
        self._end(move, outcome)

    def _resume(self, move: Move) -> None:
        move.source_request_epoch = self._submissions.renew(move.stream)
        resume = Resume(move.number, move.stream.request_id, move.source_request_epoch)
        self._submissions.tell(move.source, resume)

    def _drop_at_destination(self, move: Move) -> None:
        """The destination frees what it keeps for the request, or what it computes for it already."""
        cancel = Cancel(move.stream.request_id, move.request_epoch)
        self._submissions.tell(move.destination, AbortMove(move.number), cancel)

    def _end(self, move: Move, outcome: MoveOutcome) -> None:
        move.outcome, move.ended_s = outcome, self._clock()
        if outcome not in NO_FAILURES:
            self._not_before_s[move.source, move.destination] = self._clock() + BACK_OFF_S
        del self._moves[move.number]
        self._counts.subtract((move.source, move.destination))
        self._moving.remove(move.stream.request_id)
        self._late[move.number] = move
        if len(self._late) > MAX_LATE:
            self._late.popitem(last=False)
        labels = (("reason", move.reason.value), ("outcome", outcome.value))
        self._metrics.count("gapless_migrations_total", labels=labels)

    def _heard_late(
        self, instance: int, message: Reserved | Refused | Suspended | Adopted | MoveEnded
    ) -> None:
        """Of a move that has ended, or whose request has."""
        move = self._late.get(message.move)
        if move is not None and move.outcome is MoveOutcome.DONE:
            return
        if isinstance(message, Adopted):
            self._submissions.tell(instance, Cancel(message.request_id, message.request_epoch))
        if move is None or not move.is_current:
            return
        if isinstance(message, Suspended):
            self._resume(move)  # it stopped before it heard that the move is off
        elif isinstance(message, MoveEnded) and message.why == "gone":
            self._submissions.take_back(move.stream)

    def _check_first_token(self, move: Move, now_s: float) -> None:
        has_token = len(move.stream.tokens) > move.num_tokens
        if has_token:
            self._metrics.observe("gapless_migration_downtime_seconds", now_s - move.suspended_s)
        has_left = move.stream.request_epoch != move.request_epoch
        if has_token or has_left or move.stream.finish != Finish.RUNNING:
            del self._settling[move.number]
