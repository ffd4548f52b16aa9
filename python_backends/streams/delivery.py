"""When the next window of a stream is sent: the whole rule, its numbers and its reasons, in `Delivery`.

Used by the stream table, which says what has come and sends what is due. It identifies streams by their
request ids.
"""

from __future__ import annotations

from collections.abc import Sized
from itertools import islice

from python_backends.nouns.request import Finish
from python_backends.streams.stream import Stream
from python_backends.streams.unconfirmed import Unconfirmed

MS = 1_000_000
S = 1_000_000_000
MAX_UNACKNOWLEDGED = 32  # windows of one stream under way
MAX_IN_FLIGHT = 128  # windows of all streams under way; with 32, 64 and 256 as many tokens a second were sent
SENDER_LOAD = 0.0075  # of the machine's processors: what sending may take before tokens are sent together
ADJUST_EVERY_S = 0.1
SHRINKING = 2.0
FIRST_STEP_S = 0.010
MOST_HELD_S = 0.060  # readers get text 14 times a second; 0.040 would cost 2 to 3 % of the tokens
PROBE_SHARE = 4
PROBE_NS = 250 * MS  # a client that has left is noticed so soon, and a probe costs as much as a window
PROBE_SPACING_NS = MS
CONFIRM_NS = S
LOOK_AGAIN_NS = S // 4  # at streams with unconfirmed windows, at all of them together


class Delivery:
    """A window is under way until the detokenizer has confirmed it, or it is lost (`unconfirmed`).

    1. The last window is sent at once. An error is sent when the windows before it are confirmed, after
       CONFIRM_NS at the latest: Triton never releases a request one of whose steps fails while another runs.
       Before it, a streamed answer gets its text so far. No other window is sent: it would end the stream.
    2. Otherwise a stream of which MAX_UNACKNOWLEDGED windows are under way sends nothing: they are lost with
       a client that has left, or the detokenizer is behind. Later tokens go in fewer and larger windows. How
       fast a client reads changes nothing: a window is confirmed when Triton has taken its text, and Triton
       keeps what the client has not read.
    3. A window with the first tokens is sent at once: the client waits for it alone.
    4. Other tokens are held until they are due, and then sent if fewer than MAX_IN_FLIGHT windows of all
       streams are under way; the stream that has waited longest is the first. The detokenizer takes one
       window after the other. A few keep it at work; more only wait there, where no later token joins them.
       If none is sent or confirmed for a while (`stalls_ns`), one more is sent: those of clients that have
       left may all be lost, and only a later window that is confirmed tells.
    5. Held tokens are due `interval_s` after the first of them came. Each window takes half a millisecond of
       a processor on its way through the server, and a CPU engine computes on the same processors. So every
       ADJUST_EVERY_S the interval grows by as much as sending takes more than SENDER_LOAD of the time, from
       FIRST_STEP_S up to MOST_HELD_S, which no reader notices. It shrinks by SHRINKING, below
       FIRST_STEP_S to nothing, when sending takes a SHRINKING-th of that: a lone stream gets every token at
       once.
    6. A stream that has sent nothing for PROBE_NS, and for PROBE_SPACING_NS times the number of streams, is
       probed. A PROBE_SHARE-th of MAX_IN_FLIGHT at most are probes, so that tokens don't wait for them.

    The detokenizer holds its confirmations back as well, so that the streams thread takes one message instead
    of several (`wires/feedback.py`).
    """

    def __init__(
        self,
        unconfirmed: Unconfirmed,
        open_streams: Sized,
        now_ns: int,
        num_processors: int = 1,
    ) -> None:
        self.interval_s = 0.0
        self._num_processors = num_processors
        self._unconfirmed = unconfirmed
        self._open_streams = open_streams
        self._held: dict[int, Stream] = {}  # their tokens wait, in order
        self._quiet: dict[int, Stream] = {}  # to be probed, in order
        # when held tokens are due; 0: what is held is due at once, and tokens that come after the interval
        self._due_ns = 0
        self._busy_s, self._adjusted_s = 0.0, now_ns / S

    # --- how long tokens are held

    def spent(self, busy_s: float, now_s: float) -> None:
        """Sending took this time, up to now."""
        self._busy_s += busy_s
        elapsed_s = now_s - self._adjusted_s
        if elapsed_s >= ADJUST_EVERY_S:
            self.adjust(self._busy_s, elapsed_s)
            self._busy_s, self._adjusted_s = 0.0, now_s

    def adjust(self, busy_s: float, elapsed_s: float) -> None:
        """To the time spent in sending out of the time elapsed."""
        wanted_s = SENDER_LOAD * self._num_processors * elapsed_s
        if busy_s > wanted_s:
            grown_s = max(FIRST_STEP_S, self.interval_s) * busy_s / wanted_s
            self.interval_s = min(MOST_HELD_S, grown_s)
        elif busy_s < wanted_s / SHRINKING:
            self.interval_s = self.interval_s / SHRINKING if self.interval_s > FIRST_STEP_S else 0.0

    def tokens_came(self, now_ns: int) -> None:
        """They are due after the interval, or with those that came before them."""
        if self._due_ns == 0:
            self._due_ns = now_ns + int(self.interval_s * S)

    # --- which streams send now

    def may_send_first(self, stream: Stream) -> bool:
        """Whether it has its first tokens to send, which are not held."""
        return stream.awaits_first_token and self._may_send(stream)

    def may_fail(self, stream: Stream, now_ns: int) -> bool:
        """Whether its error may be sent."""
        return (
            not stream.unacked_ns
            or now_ns - stream.last_sent_ns >= CONFIRM_NS
            or self._unconfirmed.is_silent(stream, now_ns)
        )

    def wait(self, stream: Stream, now_ns: int) -> None:
        """Something happened to it, and what was to be sent at once is sent: what else it has waits."""
        if self._may_send(stream):
            self._held[stream.request_id] = stream
        if self._is_quiet(stream, now_ns):
            self._quiet[stream.request_id] = stream

    def drop(self, stream: Stream) -> None:
        self._held.pop(stream.request_id, None)
        self._quiet.pop(stream.request_id, None)

    def take_held(self, now_ns: int, num_others: int) -> list[Stream]:
        """Those whose held tokens are sent now, next to `num_others` windows."""
        if now_ns < self._due_ns:
            return []
        taken = _take(self._held, self._num_free(now_ns) - num_others)
        if not self._held:
            self._due_ns = 0
        return [stream for stream in taken if self._may_send(stream)]

    def take_quiet(self, now_ns: int) -> list[Stream]:
        """Those that are probed now."""
        most_probes = max(1, MAX_IN_FLIGHT // PROBE_SHARE)
        num_free = min(self._num_free(now_ns), most_probes - self._unconfirmed.num_probes)
        taken = _take(self._quiet, num_free)
        return [stream for stream in taken if self._is_quiet(stream, now_ns)]

    # --- when to look again

    def next_ns(self, otherwise_ns: int) -> int:
        """When held tokens are sent if nothing happens, at the latest `otherwise_ns`; 0: now."""
        if not self._held:
            return otherwise_ns
        is_full = self._unconfirmed.num >= MAX_IN_FLIGHT
        due_ns = max(self._due_ns, self._unconfirmed.stalls_ns) if is_full else self._due_ns
        return min(otherwise_ns, due_ns)

    def wake_ns(self, stream: Stream, now_ns: int) -> int:
        """When something is next due for this stream if nothing comes in: its
        deadline, word of a lost window, a probe.
        """
        deadline_ns = stream.request.deadline_ns if stream.finish == Finish.RUNNING else 0
        wakes = [deadline_ns] if deadline_ns else []
        if stream.unacked_ns:
            wakes.append((now_ns // LOOK_AGAIN_NS + 1) * LOOK_AGAIN_NS)
        if not self._is_full(stream):
            probe_ns = stream.last_sent_ns + self._probe_every_ns
            wakes.append(probe_ns if probe_ns > now_ns else now_ns + S)  # a probe of it waits for its turn
        return min(wakes)

    def check_integrity(self, streams: set[int]) -> None:
        """Raises AssertionError."""
        assert self._held.keys() | self._quiet.keys() <= streams, "a stream that has ended waits"

    # --- inside

    def _num_free(self, now_ns: int) -> int:
        """How many windows more may be under way; below 0 after windows that were sent at once."""
        num_free = MAX_IN_FLIGHT - self._unconfirmed.num
        return 1 if num_free <= 0 and now_ns >= self._unconfirmed.stalls_ns else num_free

    @property
    def _probe_every_ns(self) -> int:
        return max(PROBE_NS, len(self._open_streams) * PROBE_SPACING_NS)

    def _is_full(self, stream: Stream) -> bool:
        return len(stream.unacked_ns) >= MAX_UNACKNOWLEDGED

    def _may_send(self, stream: Stream) -> bool:
        """Whether it has tokens that its client would read now."""
        if stream.finish != Finish.RUNNING or self._is_full(stream):
            return False
        return stream.has_news and stream.is_followed

    def _is_quiet(self, stream: Stream, now_ns: int) -> bool:
        """Whether nothing was sent for so long that it is probed."""
        if stream.finish != Finish.RUNNING or self._is_full(stream):
            return False
        return now_ns - stream.last_sent_ns >= self._probe_every_ns


def _take(streams: dict[int, Stream], most: int) -> list[Stream]:
    """At most `most`; the one that has waited longest is the first."""
    return [streams.pop(number) for number in list(islice(streams, max(0, most)))]
