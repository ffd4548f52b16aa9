"""The waiting sequences of one instance, and whose turn it is. Called only by the slot scheduler.

Larger priorities go first, and within a priority the earlier arrival, or the one that a `PredictedOrder` puts
first. A sequence is passed over when one that came later gets a slot before it; once that is longer ago than
the bound, and it has waited here for as long, it goes first, whatever its priority. So one that has lost its
slot, or comes from another instance, does not go first at once.

Sequences with the same adapter are in a queue of their own: where none of them can go, a turn looks at one of
them, however many wait. No call takes much longer when more sequences wait.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from sortedcontainers import SortedKeyList

from python_backends.scheduling.lengths.predicted_order import PredictedOrder
from python_backends.scheduling.state.sequence import Sequence


def _place(sequence: Sequence) -> float:
    return sequence.arrival


def _rank(sequence: Sequence) -> tuple[int, float]:
    return -sequence.request.priority, sequence.arrival


class _Queue:
    """Waiting sequences with the same adapter."""

    def __init__(self) -> None:
        self.arrived = SortedKeyList(key=_place)
        self.ranked = SortedKeyList(key=_rank)  # empty where a predicted order has them
        self.old = SortedKeyList(key=_place)  # those that have waited here for as long as the bound


class WaitingList:
    """`clock` returns monotonic seconds, or step numbers, in the unit of `max_passed_over`."""

    def __init__(
        self,
        max_passed_over: float,
        clock: Callable[[], float],
        by_priority: bool = True,
        predicted: PredictedOrder | None = None,
        block_tokens: int = 1,
    ) -> None:
        self._max_passed_over = max_passed_over
        self._clock = clock
        self._by_priority = by_priority
        self._predicted = predicted
        self._block_tokens = block_tokens
        self.num_blocks = 0  # that all of them need for their tokens so far
        self._count = 0
        # by the digest of the adapter; none is empty
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)
        # since when each waits that is not old yet, by request; the longest first
        self._recent: OrderedDict[int, tuple[float, Sequence]] = OrderedDict()
        # (when, arrival of the sequence that got a slot): those that waited and had come earlier were passed
        # over then; both ascend
        self._passes: deque[tuple[float, float]] = deque()
        self._overdue = -math.inf  # old sequences that came before this arrival go first

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """In order of arrival."""
        return heapq.merge(*(queue.arrived for queue in self._queues.values()), key=_place)

    def has_adapter(self, digest: str) -> bool:
        """Whether a sequence with this adapter waits."""
        return digest in self._queues

    def add(self, sequence: Sequence) -> None:
        queue = self._queues[sequence.request.adapter.digest]
        queue.arrived.add(sequence)
        ranked = queue.ranked if self._predicted is None else self._predicted
        ranked.add(sequence)
        self._recent[sequence.request_id] = self._clock(), sequence
        self._count += 1
        self.num_blocks += self._blocks_for(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Removes `sequence`, which ended while it waited, or gets a slot."""
        digest = sequence.request.adapter.digest
        queue = self._queues[digest]
        queue.arrived.remove(sequence)
        ranked = queue.ranked if self._predicted is None else self._predicted
        ranked.remove(sequence)
        if self._recent.pop(sequence.request_id, None) is None:
            queue.old.remove(sequence)
        if not queue.arrived:
            del self._queues[digest]
        self._count -= 1
        self.num_blocks -= self._blocks_for(sequence)

    def seat(self, sequence: Sequence) -> None:
        """Removes `sequence`, which gets a slot: the waiting ones that came earlier are passed over."""
        self.remove(sequence)
        if self._predicted is not None:
            self._predicted.seated(sequence)
        if not self._by_priority:
            return  # none becomes overdue
        known = self._passes[-1][1] if self._passes else self._overdue
        first = min((queue.arrived[0].arrival for queue in self._queues.values()), default=math.inf)
        if sequence.arrival > known and first < sequence.arrival:
            self._passes.append((self._clock(), sequence.arrival))

    def in_order(self, is_open: Callable[[str], bool] = lambda digest: True) -> Iterator[Sequence]:
        """The waiting sequences in the order of their turns, after noting which are overdue now. Lazy: a
        policy reads only the head. Where none with an adapter can go, `is_open` says no to its digest, and
        only the first ones of them are there.
        """
        if self._by_priority:
            self._note_overdue()
        yield from self._turns(is_open)

    def _turns(self, is_open: Callable[[str], bool] = lambda digest: True) -> Iterator[Sequence]:
        if not self._by_priority:
            yield from self._merged(lambda queue: queue.arrived, _place, is_open)
            return
        yield from self._merged(self._overdue_of, _place, is_open)
        ranked = self._predicted or self._merged(lambda queue: queue.ranked, _rank, is_open)
        yield from (sequence for sequence in ranked if not self.is_overdue(sequence))

    def _overdue_of(self, queue: _Queue) -> Iterable[Sequence]:
        overdue: Iterable[Sequence] = queue.old.irange_key(max_key=self._overdue, inclusive=(True, False))
        return overdue

    def _merged(
        self,
        part: Callable[[_Queue], Iterable[Sequence]],
        key: Callable[[Sequence], tuple[int, float] | float],
        is_open: Callable[[str], bool],
    ) -> Iterator[Sequence]:
        """This part of each queue, in the order of `key`; the first one of queues that are not open."""
        parts = (
            part(queue) if is_open(digest) else islice(part(queue), 1)
            for digest, queue in self._queues.items()
        )
        return heapq.merge(*parts, key=key)

    @property
    def num_head_blocks(self) -> int:
        """The blocks that the one whose turn is next needs for its tokens so far; 0 if none waits."""
        head = next(self._turns(), None) or next(iter(self), None)
        return 0 if head is None else self._blocks_for(head)

    def is_overdue(self, sequence: Sequence) -> bool:
        """Whether it has been passed over for too long."""
        return sequence.arrival < self._overdue and sequence.request_id not in self._recent

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        here, queues = list(self), self._queues.values()
        assert self._count == len(here), "the number of the waiting is off"
        assert self.num_blocks == sum(map(self._blocks_for, here)), "blocks of the waiting are off"
        recent = [sequence for _, sequence in self._recent.values()]
        old = [sequence for queue in queues for sequence in queue.old]
        assert {*map(id, recent), *map(id, old)} == {*map(id, here)}, "nobody knows since when some wait"
        assert len(recent) + len(old) == len(here), "some are both old and recent"
        if self._predicted is not None:
            self._predicted.check_integrity()
        else:
            ranked = [sequence for queue in queues for sequence in queue.ranked]
            assert {*map(id, here)} == {*map(id, ranked)}, "the orders differ"

    def _blocks_for(self, sequence: Sequence) -> int:
        return -(-len(sequence.tokens) // self._block_tokens)

    def _note_overdue(self) -> None:
        now = self._clock()
        while self._passes and self._passes[0][0] + self._max_passed_over <= now:
            _, self._overdue = self._passes.popleft()
        while self._recent:
            since, sequence = next(iter(self._recent.values()))
            if since + self._max_passed_over > now:
                break
            del self._recent[sequence.request_id]
            self._queues[sequence.request.adapter.digest].old.add(sequence)
