"""Which streams are to be looked at now: something happened to them, their tokens have waited for company, or their time has come.

Knows streams by their numbers. Used by the stream table, which looks at nobody else: a thousand quiet streams cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from python_backends.streams.timers import Timers


class ReadyQueue:
    """Times are nanoseconds of one monotonic clock."""

    def __init__(self) -> None:
        self._touched: dict[int, None] = {}  # in order
        self._held: dict[int, None] = {}  # their tokens wait for company
        self._flush_ns = 0  # when the oldest of these tokens is sent at the latest; 0: none waits
        self._is_flushed = False  # all tokens are sent with the next look
        self.timers = Timers()  # when a stream is looked at although nothing happened to it

    @property
    def is_empty(self) -> bool:
        """Nothing has happened to anybody."""
        return not self._touched and not self._is_flushed

    def touch(self, stream: int) -> None:
        self._touched[stream] = None

    def hold(self, stream: int) -> None:
        """Until tokens are sent the next time."""
        self._held[stream] = None

    def flush_at(self, when_ns: int) -> None:
        """Tokens that come now are sent then at the latest, or with those that came before them."""
        if self._flush_ns == 0:
            self._flush_ns = when_ns

    def flush(self) -> None:
        """Tokens that have come are sent now."""
        self._is_flushed = True

    def drop(self, stream: int) -> None:
        self.timers.drop(stream)
        self._touched.pop(stream, None)
        self._held.pop(stream, None)

    def take(self, now_ns: int) -> tuple[Iterable[int], bool]:
        """Each of those to be looked at once, and whether tokens that waited are to be sent."""
        flush = self._is_flushed or now_ns >= self._flush_ns
        taken, self._touched = self._touched, {}
        taken |= dict.fromkeys(self.timers.pop_due(now_ns))
        if flush:
            taken |= self._held
            self._is_flushed, self._flush_ns, self._held = False, 0, {}
        return taken, flush

    def next_ns(self, otherwise_ns: int) -> int:
        """When somebody is to be looked at if nothing happens, at the latest `otherwise_ns`."""
        wake = self.timers.next_ns(otherwise_ns)
        return min(wake, self._flush_ns) if self._held else wake

    def check_integrity(self, streams: set[int]) -> None:
        """Raises AssertionError."""
        assert {*self._touched, *self.timers} == streams, "a stream is never looked at again, or one that has ended is"
        assert set(self._held) <= streams, "a stream that has ended waits for company"
