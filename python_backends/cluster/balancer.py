"""Decides which requests go to another instance after they were dispatched: those that wait, if another
instance could start them at once; those that run, if the policy finds a better place; and all that are in an
instance which is to be empty.

Called by the streams thread. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from itertools import product

from python_backends.cluster.gathering import (
    by_spare,
    destination_for,
    first_waiting,
    lacking,
    missing_tokens,
    spare_tokens,
)
from python_backends.cluster.policies.pairs import freer_afterwards
from python_backends.cluster.policies.policy import Pair
from python_backends.cluster.router import Router
from python_backends.moving.coordinator import Coordinator
from python_backends.moving.move import Move, MoveOutcome, MoveReason
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.request import Finish
from python_backends.settings import ClusterSettings
from python_backends.streams.stream import NO_INSTANCE, Stream
from python_backends.streams.submissions import Submissions
from python_backends.watching.metrics import Metrics

GROWTH_TOKENS = 128  # that a destination must have free for the next tokens of the request, at most
DRAINING_MOVES = 4  # leave an instance at a time that is to be empty
STAYS_S = 5.0  # a request that waits is sent elsewhere once in this time at most


class Balancer:
    """Owns when each waiting request was sent elsewhere."""

    def __init__(
        self,
        settings: ClusterSettings,
        router: Router,
        coordinator: Coordinator,
        submissions: Submissions,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._router = router
        self._coordinator = coordinator
        self._submissions = submissions
        self._metrics = metrics
        self._sent_s: dict[int, float] = {}  # by request id

    def balance(self, streams: Collection[Stream], now_s: float) -> None:
        """Sends requests elsewhere, and starts moves. `streams` are all."""
        if not self._submissions.quarantine.is_calm(streams):
            return
        self._sent_s = {number: at_s for number, at_s in self._sent_s.items() if now_s - at_s < STAYS_S}
        at, takers = _by_instance(streams), self._router.takers
        all_takers = [load.number for load in takers]
        idle = [load.number for load in takers if _has_place_at_once(load)]
        for load in self._router.loads:
            if load.number in self._router.draining:
                self._send_waiting(load.number, all_takers, at[load.number], now_s)
            elif load.said.num_waiting and idle and self._router.policy.find_pairs is not None:
                self._send_waiting(load.number, idle, at[load.number], now_s)
        if self._router.policy.gathers:
            self._gather(at, now_s)
        self._drain(at, now_s)
        for pair in self._router.find_pairs():
            self._move_one(pair, at[pair.source.number], now_s)

    def move(self, stream: Stream, instance: int, reason: MoveReason, now_s: float) -> Move | None:
        """Moves a stream that can leave its instance. Returns the move if its KV blocks are copied; else it
        is submitted there, and its tokens are computed again.
        """
        if self._settings.move == "blocks" and self._coordinator.may_copy(stream.instance, instance):
            move = self._coordinator.start(stream, instance, reason)
            self._router.moved(stream, instance)
            return move
        self.send(stream, instance, reason, now_s)
        return None

    def send(self, stream: Stream, instance: int, reason: MoveReason, now_s: float) -> None:
        """It is submitted there, and its tokens are computed again."""
        self._submissions.submit_elsewhere(stream, instance, round(now_s * 1e9))
        labels = (("reason", reason.value), ("outcome", MoveOutcome.DONE.value))
        self._metrics.count("gapless_migrations_total", labels=labels)

    # --- requests without a slot

    def _send_waiting(self, instance: int, places: list[int], streams: list[Stream], now_s: float) -> None:
        """Sends waiting requests of `instance` to those of `places` where they start at once; if `instance`
        is to be empty, to any of them. An answer that has begun goes on with the same model only.
        """
        load, is_draining = self._router.load(instance), instance in self._router.draining
        for stream in streams:
            if stream.seated:
                continue
            if not is_draining and load.unseen:
                return  # it may just have come
            if not is_draining and (stream.tokens or stream.request_id in self._sent_s):
                continue  # it was evicted, or sent here
            loads = [self._router.load(each) for each in places]  # with what was just sent there
            same = [each for each in loads if not stream.tokens or _have_same_model(load, each)]
            others = [each.number for each in same if is_draining or _starts_at_once(each, stream)]
            destination = self._router.choose(stream, others)
            if destination is None and same:
                return
            if destination is None:
                continue
            self._sent_s[stream.request_id] = now_s
            reason = MoveReason.DEFRAGMENT if load.has_free_slot else MoveReason.SATURATE
            self.send(stream, destination, MoveReason.DRAIN if is_draining else reason, now_s)

    # --- requests with a slot

    def _gather(self, at: defaultdict[int, list[Stream]], now_s: float) -> None:
        """Where a request waits for memory, one running request leaves that has enough of it."""
        loads = self._router.takers
        firsts = {load.number: first_waiting(at[load.number]) if load.num_waiting else None for load in loads}
        calm = [load for load in loads if not self._coordinator.count(load.number)]
        ordered = by_spare(calm)
        for source in lacking(calm, firsts):
            destination = destination_for(source, ordered, firsts)
            if destination is None or self._coordinator.count(source.number):
                continue
            pair = Pair(source, destination, MoveReason.DEFRAGMENT)
            stream = self._choose_for(source, destination, at[source.number])
            if stream is not None and self._can_move(pair):
                self.move(stream, destination.number, pair.reason, now_s)
                ordered = [load for load in ordered if load not in (source, destination)]

    def _choose_for(
        self, source: InstanceLoad, destination: InstanceLoad, streams: list[Stream]
    ) -> Stream | None:
        """The smallest of ordinary priority that fits into `destination` and frees enough in `source`; one
        whose move has just failed after the others.
        """
        missing, spare = missing_tokens(source), spare_tokens(destination)
        failed = self._coordinator.failed_lately()
        fitting = [
            stream
            for stream in streams
            if stream.num_tokens >= missing
            and _demand(stream) <= spare
            and stream.request.priority <= 0
            and self._coordinator.can_leave(stream)
        ]
        return min(fitting, key=lambda each: (each.request_id in failed, each.num_tokens), default=None)

    def _drain(self, at: defaultdict[int, list[Stream]], now_s: float) -> None:
        """Requests leave each instance that is to be empty: for the freest one, and those that do not fit
        there for the next.
        """
        takers = sorted(self._router.takers, key=self._router.freeness_of, reverse=True)
        leaving = [load for load in self._router.loads if load.number in self._router.draining]
        for source, taker in product(leaving, takers):
            streams = at[source.number]
            for _ in range(DRAINING_MOVES):
                pair = Pair(source, self._router.load(taker.number), MoveReason.DRAIN)
                if not streams or not self._move_one(pair, streams, now_s):
                    break

    def _move_one(self, pair: Pair, streams: list[Stream], now_s: float) -> bool:
        """Whether one of `streams` leaves."""
        source, destination = pair.source.number, pair.destination.number
        most = self._router.policy.max_moves
        if pair.reason is MoveReason.DRAIN:
            most = max(most, DRAINING_MOVES)
        num_moves = max(self._coordinator.count(source), self._coordinator.count(destination))
        if num_moves >= most or not self._can_move(pair):
            return False
        stream = self._choose(pair, streams)
        if stream is not None:
            self.move(stream, destination, pair.reason, now_s)
        return stream is not None

    def _can_move(self, pair: Pair) -> bool:
        is_allowed = self._settings.move != "off" and _have_same_model(pair.source, pair.destination)
        return is_allowed and self._coordinator.may_try(pair.source.number, pair.destination.number)

    def _choose(self, pair: Pair, streams: list[Stream]) -> Stream | None:
        """Of those that can leave and fit: the one of lowest priority, and then the shortest; one whose move
        has just failed after the others.
        """
        load = pair.destination
        if load.num_free_slots <= 0:
            return None
        free_tokens, is_worth_it = load.free_tokens, self._worth(pair)
        fitting = [
            stream
            for stream in streams
            if _demand(stream) <= free_tokens and is_worth_it(stream) and self._coordinator.can_leave(stream)
        ]
        failed = self._coordinator.failed_lately()
        return min(
            fitting,
            key=lambda each: (each.request_id in failed, each.request.priority, each.num_tokens),
            default=None,
        )

    def _worth(self, pair: Pair) -> Callable[[Stream], bool]:
        """Says of a stream whether its move is worth its cost."""
        if pair.reason in (MoveReason.DRAIN, MoveReason.SHUFFLE):
            return lambda stream: True
        is_freer = freer_afterwards(pair, self._router.policy.keeps_headroom)
        stays_within = pair.destination.limits.block_tokens if self._router.policy.spares_ending else 0

        def is_worth_it(stream: Stream) -> bool:
            if stays_within and _is_about_to_end(stream, stays_within):
                return False
            if pair.reason is MoveReason.PRIORITY:
                return stream.request.priority <= 0
            return is_freer(stream.num_tokens)

        return is_worth_it


def _by_instance(streams: Collection[Stream]) -> defaultdict[int, list[Stream]]:
    """Open streams that an instance has, in the order in which they came."""
    at: defaultdict[int, list[Stream]] = defaultdict(list)
    for stream in streams:
        if stream.instance != NO_INSTANCE and stream.finish == Finish.RUNNING:
            at[stream.instance].append(stream)
    return at


def _have_same_model(load: InstanceLoad, other: InstanceLoad) -> bool:
    return load.limits.fingerprint == other.limits.fingerprint


def _has_place_at_once(load: InstanceLoad) -> bool:
    """Whether a slot is free there, and no request waits."""
    return not load.said.num_waiting and load.num_free_slots > 0


def _starts_at_once(load: InstanceLoad, stream: Stream) -> bool:
    """Whether the request would get a slot and memory there now, as admission there predicts it."""
    free_tokens = load.unpromised_tokens - load.waiting_tokens
    return _has_place_at_once(load) and free_tokens >= _demand(stream)


def _is_about_to_end(stream: Stream, num_tokens: int) -> bool:
    """Whether it is predicted to end within `num_tokens` tokens."""
    prediction = stream.prediction
    return prediction is not None and prediction.mean - len(stream.tokens) < num_tokens


def _demand(stream: Stream) -> int:
    """KV tokens that it needs now and for its next steps."""
    num_left = stream.request.sampling.max_tokens - len(stream.tokens)
    return stream.num_tokens + min(GROWTH_TOKENS, num_left)
