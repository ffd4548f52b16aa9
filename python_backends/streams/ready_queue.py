"""Which streams are to be looked at now: something happened to them, their tokens have waited to be sent
together, or their time has come.

It identifies streams by their request ids. Used by the stream table, which looks at no other stream: a
thousand quiet streams cost nothing. Tested in tests/pure/test_streams.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from python_backends.streams.timers import Timers


class ReadyQueue:
    """Times are nanoseconds of one monotonic clock."""

    def __init__(self) -> None:
        self._touched: dict[int, None] = {}  # in order
        self._held: dict[int, None] = {}  # their tokens wait to be sent together, in order
        self._quiet: dict[int, None] = {}  # to be probed when a probe may be sent, in order
        self._flush_ns = 0  # when the oldest of these tokens is due; 0: none waits
        self._is_flushed = False  # all tokens are due
        self.timers = Timers()  # when a stream is looked at although nothing happened to it

    def touch(self, stream: int) -> None:
        self._touched[stream] = None

    def hold(self, stream: int) -> None:
        """Until its tokens are due, and those of the streams before it are sent."""
        self._held[stream] = None

    def add_quiet(self, stream: int) -> None:
        """It is to be probed, after those that came before it."""
        self._quiet[stream] = None

    def take_quiet(self, most: int) -> list[int]:
        """Those to be probed now, at most `most`."""
        taken = list(islice(self._quiet, most))
        for stream in taken:
            del self._quiet[stream]
        return taken

    def flush_at(self, when_ns: int) -> None:
        """Tokens that come now are due then at the latest, or with those that came before them."""
        if self._flush_ns == 0:
            self._flush_ns = when_ns

    def flush(self) -> None:
        """Tokens that have come are due."""
        self._is_flushed = True

    def drop(self, stream: int) -> None:
        self.timers.drop(stream)
        self._touched.pop(stream, None)
        self._held.pop(stream, None)
        self._quiet.pop(stream, None)

    def take(self, now_ns: int) -> Iterable[int]:
        """Each of those to be looked at once: something happened to them, or their time has come."""
        taken, self._touched = self._touched, {}
        return taken | dict.fromkeys(self.timers.pop_due(now_ns))

    def take_held(self, now_ns: int, most: int) -> list[int]:
        """Those whose tokens are due, at most `most`; the one that has waited longest is the first."""
        if not self._is_flushed and now_ns < self._flush_ns:
            return []
        taken = list(islice(self._held, most))
        for stream in taken:
            del self._held[stream]
        self._is_flushed, self._flush_ns = bool(self._held), 0
        return taken

    def next_ns(self, otherwise_ns: int, may_send: bool) -> int:
        """When a stream is to be looked at if nothing happens, at the latest `otherwise_ns`; 0: now."""
        if self._touched:
            return 0
        wake = self.timers.next_ns(otherwise_ns)
        if not self._held or not may_send:
            return wake
        return 0 if self._is_flushed else min(wake, self._flush_ns)

    def check_integrity(self, streams: set[int]) -> None:
        """Raises AssertionError."""
        assert {*self._touched, *self.timers} == streams, (
            "a stream is never looked at again, or one that has ended is"
        )
        assert set(self._held) | set(self._quiet) <= streams, (
            "a stream that has ended waits for company or for a probe"
        )
