"""Windows that the detokenizer has not confirmed: how many there may be, when one is lost, and when a quiet stream is probed.

Windows of a client that has left are no longer dispatched, and those inside a detokenizer that dies are lost: either way nobody
confirms them, while younger ones of others are. The detokenizer takes windows in the order in which they were sent. A few keep it at
work; more only wait there, and with them all tokens that come later. Used by the stream table. All times are nanoseconds of one
monotonic clock.
"""

from __future__ import annotations

from collections import deque

from python_backends.config import StreamSettings
from python_backends.streams.stream import Stream

MS = 1_000_000
S = 1_000_000_000
SILENCE_NS = S // 2  # a window sent so long before a confirmed one, or before the detokenizer had nothing to do, is lost
LONG_SILENCE_NS = 30 * S  # one that is unconfirmed for so long is, whatever others see
LOOK_AGAIN_NS = S // 4  # at streams with unconfirmed windows, at all of them together


class FlowControl:
    def __init__(self, settings: StreamSettings) -> None:
        self._max_unacknowledged = settings.max_unacknowledged
        self._max_in_flight = settings.max_in_flight
        self._probe_ns = int(settings.probe_ms * MS)
        self._last_confirmed_ns = 0  # when the youngest confirmed window was sent
        self._in_flight_ns: deque[int] = deque()  # when windows were sent that are neither confirmed nor known to be lost, ascending

    def sent(self, stream: Stream, now_ns: int) -> None:
        """The server has taken the last window of this stream: from now on it may be missed."""
        if stream.unacked_ns:
            stream.unacked_ns[-1] = now_ns
            self._in_flight_ns.append(now_ns)

    def confirmed(self, stream: Stream) -> None:
        """The oldest window of this stream."""
        if stream.unacked_ns:
            self.idle(stream.unacked_ns.popleft())

    def idle(self, at_ns: int) -> None:
        """Everything that was sent before is confirmed or lost."""
        self._last_confirmed_ns = max(self._last_confirmed_ns, at_ns)

    def room(self, now_ns: int) -> int:
        """How many windows more may be sent now."""
        done_ns = max(self._last_confirmed_ns, now_ns - LONG_SILENCE_NS)
        while self._in_flight_ns and self._in_flight_ns[0] <= done_ns:
            self._in_flight_ns.popleft()
        return max(0, self._max_in_flight - len(self._in_flight_ns))

    def is_full(self, stream: Stream) -> bool:
        return len(stream.unacked_ns) >= self._max_unacknowledged

    def is_silent(self, stream: Stream, now_ns: int) -> bool:
        """A window of it is lost: its client is gone."""
        if not stream.unacked_ns:
            return False
        return stream.unacked_ns[0] + SILENCE_NS < max(self._last_confirmed_ns, now_ns - LONG_SILENCE_NS + SILENCE_NS)

    def is_quiet(self, stream: Stream, now_ns: int, num_streams: int) -> bool:
        """Nothing was sent for so long that it is probed."""
        return now_ns - stream.last_sent_ns >= self._probe_every_ns(num_streams)

    def wake_ns(self, stream: Stream, now_ns: int, num_streams: int) -> int:
        """When something is next due for this stream if nothing comes in: its deadline, word of a lost window, a probe."""
        wakes = [stream.request.deadline_ns] if stream.request.deadline_ns else []
        if stream.unacked_ns:
            wakes.append((now_ns // LOOK_AGAIN_NS + 1) * LOOK_AGAIN_NS)
        if not self.is_full(stream):
            wakes.append(stream.last_sent_ns + self._probe_every_ns(num_streams))
        return min(wakes)

    def _probe_every_ns(self, num_streams: int) -> int:
        """At most a thousand probes a second over all streams."""
        return max(self._probe_ns, num_streams * MS)
