"""When streams are next to be looked at though nothing happens to them: one time
each, earliest first. Used by the stream table. Tested in tests/pure/test_streams.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Timers:
    """Times are nanoseconds of one monotonic clock."""

    def __init__(self) -> None:
        # (when, stream), with entries of the past that no longer count
        self._heap: list[tuple[int, int]] = []
        self._when: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._when)

    def set(self, stream: int, when_ns: int) -> None:
        """An earlier time that is already set stays: the next one is
        set when the stream is looked at then.
        """
        if when_ns < self._when.get(stream, when_ns + 1):
            self._when[stream] = when_ns
            heapq.heappush(self._heap, (when_ns, stream))

    def drop(self, stream: int) -> None:
        self._when.pop(stream, None)

    def pop_due(self, now_ns: int) -> Iterator[int]:
        """The streams whose time has come, earliest first."""
        while self._heap and self._heap[0][0] <= now_ns:
            when_ns, stream = heapq.heappop(self._heap)
            if self._when.get(stream) == when_ns:
                del self._when[stream]
                yield stream

    def next_ns(self, otherwise_ns: int) -> int:
        while self._heap and self._when.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return min(self._heap[0][0], otherwise_ns) if self._heap else otherwise_ns
