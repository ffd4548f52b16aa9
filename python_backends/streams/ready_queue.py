"""Which streams are to be looked at now: something happened to them, or their time has come.

It identifies streams by their request ids. Used by the stream table, which looks at no other stream: a
thousand quiet streams cost nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class ReadyQueue:
    """Times are nanoseconds of one monotonic clock."""

    def __init__(self) -> None:
        self._touched: dict[int, None] = {}  # in order
        # (when, stream), with entries of the past that no longer count
        self._heap: list[tuple[int, int]] = []
        self._when: dict[int, int] = {}  # a stream is looked at although nothing happened to it

    def touch(self, stream: int) -> None:
        self._touched[stream] = None

    def wake_at(self, stream: int, when_ns: int) -> None:
        """An earlier time that is already set stays: the next one is
        set when the stream is looked at then.
        """
        if when_ns < self._when.get(stream, when_ns + 1):
            self._when[stream] = when_ns
            heapq.heappush(self._heap, (when_ns, stream))

    def drop(self, stream: int) -> None:
        self._when.pop(stream, None)
        self._touched.pop(stream, None)

    def take(self, now_ns: int) -> Iterable[int]:
        """Each of those to be looked at once: something happened to them, or their time has come."""
        taken, self._touched = self._touched, {}
        while self._heap and self._heap[0][0] <= now_ns:
            when_ns, stream = heapq.heappop(self._heap)
            if self._when.get(stream) == when_ns:
                del self._when[stream]
                taken[stream] = None
        return taken

    def next_ns(self, otherwise_ns: int) -> int:
        """When a stream is to be looked at if nothing happens, at the latest `otherwise_ns`; 0: now."""
        if self._touched:
            return 0
        while self._heap and self._when.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return min(self._heap[0][0], otherwise_ns) if self._heap else otherwise_ns

    def check_integrity(self, streams: set[int]) -> None:
        """Raises AssertionError."""
        assert self._touched.keys() | self._when.keys() == streams, (
            "a stream is never looked at again, or one that has ended is"
        )
