"""The waiting sequences of one instance, and whose turn it is. Called only by the slot scheduler.

Larger priorities go first, and within a priority the earlier arrival, or the one that a `PredictedOrder` puts
first. A sequence is passed over when one that came later gets a slot before it; once that is longer ago than
the bound it goes first, whatever its priority. No call takes much longer when more sequences wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from sortedcontainers import SortedKeyList

from python_backends.scheduling.lengths.predicted_order import PredictedOrder
from python_backends.scheduling.state.sequence import Sequence


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
        self._arrived = SortedKeyList(key=lambda sequence: sequence.arrival)
        # who is next, but for those that are overdue
        by_arrival = SortedKeyList(key=lambda sequence: (-sequence.request.priority, sequence.arrival))
        self._ranked = by_arrival if predicted is None else predicted
        # (when, arrival of the sequence that got a slot): those that waited and had come earlier were passed
        # over then; both ascend
        self._passes: deque[tuple[float, float]] = deque()
        self._overdue: float = 0  # sequences that came before this arrival go first

    def __len__(self) -> int:
        return len(self._arrived)

    def __iter__(self) -> Iterator[Sequence]:
        """In order of arrival."""
        return iter(self._arrived)

    def add(self, sequence: Sequence) -> None:
        self._arrived.add(sequence)
        self._ranked.add(sequence)
        self.num_blocks += self._blocks_for(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Removes `sequence`, which ended while it waited, or gets a slot."""
        self._arrived.remove(sequence)
        self._ranked.remove(sequence)
        self.num_blocks -= self._blocks_for(sequence)

    def seat(self, sequence: Sequence) -> None:
        """Removes `sequence`, which gets a slot: the waiting ones that came earlier are passed over."""
        self.remove(sequence)
        if self._predicted is not None:
            self._predicted.seated(sequence)
        known = self._passes[-1][1] if self._passes else self._overdue
        if sequence.arrival > known and self._arrived and self._arrived[0].arrival < sequence.arrival:
            self._passes.append((self._clock(), sequence.arrival))

    def in_order(self) -> Iterator[Sequence]:
        """The waiting sequences in the order of their turns, after noting which are overdue now. Lazy: a
        policy reads only the head.
        """
        if self._by_priority:
            self._note_overdue()
        yield from self._turns()

    def _turns(self) -> Iterator[Sequence]:
        if not self._by_priority:
            yield from self._arrived
            return
        yield from self._arrived.irange_key(max_key=self._overdue, inclusive=(True, False))
        yield from (sequence for sequence in self._ranked if sequence.arrival >= self._overdue)

    @property
    def num_head_blocks(self) -> int:
        """The blocks that the one whose turn is next needs for its tokens so far; 0 if none waits."""
        head = next(self._turns(), None) or next(iter(self._arrived), None)
        return 0 if head is None else self._blocks_for(head)

    def is_overdue(self, sequence: Sequence) -> bool:
        """Whether it has been passed over for too long."""
        return sequence.arrival < self._overdue

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        assert self.num_blocks == sum(map(self._blocks_for, self._arrived)), "blocks of the waiting are off"
        if self._predicted is not None:
            self._predicted.check_integrity()
        else:
            assert {*map(id, self._arrived)} == {*map(id, self._ranked)}, "the orders differ"

    def _blocks_for(self, sequence: Sequence) -> int:
        return -(-len(sequence.tokens) // self._block_tokens)

    def _note_overdue(self) -> None:
        while self._passes and self._passes[0][0] + self._max_passed_over <= self._clock():
            _, self._overdue = self._passes.popleft()
