"""Windows that the detokenizer has not confirmed: how many a stream may have, when one is lost, and when a quiet stream is probed.

Windows of a client that has left are no longer dispatched, and those inside a detokenizer that dies are lost: either way nobody
confirms them, while younger ones of others are. Used by the stream table. All times are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

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
        self._probe_ns = int(settings.probe_ms * MS)
        self._last_confirmed_ns = 0  # when the youngest confirmed window was sent

    def confirmed(self, stream: Stream) -> None:
        """The oldest window of this stream."""
        if stream.unacked_ns:
            self.idle(stream.unacked_ns.popleft())

    def idle(self, at_ns: int) -> None:
        """Everything that was sent before is confirmed or lost."""
        self._last_confirmed_ns = max(self._last_confirmed_ns, at_ns)

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
