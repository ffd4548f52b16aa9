"""Windows that the detokenizer has not confirmed: how many there are, and when one is lost.

Triton may no longer dispatch windows of a client that has left, and those inside a detokenizer that dies are
lost: either way they are not confirmed, while younger ones of others are. The detokenizer takes windows in
the order in which they were sent. Used by the stream table and the rule of delivery. All times are
nanoseconds of one monotonic clock.
"""

from __future__ import annotations

from collections import deque

from python_backends.streams.stream import Stream

S = 1_000_000_000
SILENCE_NS = S // 2  # a window sent this long before a confirmed one is lost
# a window that is unconfirmed for this long is lost, even if no later one is confirmed
LONG_SILENCE_NS = 30 * S
IDLE_NS = S // 5  # the detokenizer says that it is idle after this time without a window
# the streams thread looks at the table once a second: after a longer time it, or the machine, stood still
PAUSE_NS = 2 * S
STALL_NS = S // 4  # without a window or a confirmation: those under way may all be lost
ANSWER_EVERY_NS = S // 20  # the server's answers are noted this often
MAX_ANSWERS = 200


class Unconfirmed:
    def __init__(self) -> None:
        self._last_confirmed_ns = 0  # what was sent before is confirmed or lost
        # when windows were sent that are neither confirmed nor known to be lost, ascending
        self._sent_ns: deque[int] = deque()
        self._probes_ns: deque[int] = deque()  # when those of them were sent that are probes
        # when calls of the server began and ended, ascending
        self._answers: deque[tuple[int, int]] = deque(maxlen=MAX_ANSWERS)
        self._awake_since_ns = self._checked_ns = 0
        self._moved_ns = 0  # when a window was last sent or confirmed
        self._detokenizer_began_ns = 0
        # when the unconfirmed windows of streams that have left the table were sent, in the order of leaving
        self._left: dict[int, deque[int]] = {}

    @property
    def num(self) -> int:
        """Of all streams, as of the last `forget_settled`."""
        return len(self._sent_ns)

    @property
    def num_probes(self) -> int:
        return len(self._probes_ns)

    @property
    def stalls_ns(self) -> int:
        """When those under way may all be lost, if none is sent or confirmed before."""
        return self._moved_ns + STALL_NS

    def forget_settled(self, now_ns: int) -> None:
        """Forgets windows that are confirmed or lost. Called once a second at
        least, unless this process or machine stands still.
        """
        if now_ns - self._checked_ns > PAUSE_NS:
            self._awake_since_ns = now_ns
        self._checked_ns = now_ns
        done_ns = max(self._last_confirmed_ns, now_ns - LONG_SILENCE_NS)
        _forget(self._sent_ns, done_ns)
        _forget(self._probes_ns, done_ns)
        while self._left and max(next(iter(self._left.values())), default=0) <= done_ns:
            del self._left[next(iter(self._left))]

    def server_answered(self, began_ns: int, ended_ns: int) -> None:
        """A call of the server, such as the sending of a window, began and
        ended: so it did not stand still all the time.
        """
        if not self._answers or began_ns - self._answers[-1][0] >= ANSWER_EVERY_NS:
            self._answers.append((began_ns, ended_ns))

    def sent(self, stream: Stream, now_ns: int, *, is_probe: bool = False) -> None:
        """The server has taken the last window of this stream: from now on it counts as sent."""
        if stream.unacked_ns:
            stream.unacked_ns[-1] = now_ns
            self._sent_ns.append(now_ns)
            self._moved_ns = now_ns
            if is_probe:
                self._probes_ns.append(now_ns)

    def not_sent(self, stream: Stream) -> None:
        """The server has not taken the last window of this stream."""
        stream.unacked_ns.pop()

    def forget(self, stream: Stream) -> None:
        """The unconfirmed windows of this stream are lost, and it is about to end."""
        stream.unacked_ns.clear()

    def confirmed(self, stream: Stream) -> None:
        """The oldest window of this stream."""
        if stream.unacked_ns:
            self._settle(stream.unacked_ns.popleft())

    def left(self, stream: Stream) -> None:
        """The stream leaves the table. Its windows are confirmed later."""
        self._left[stream.request_id] = stream.unacked_ns

    def confirmed_of_left(self, request_id: int) -> None:
        """The oldest window of this stream, which has left the table."""
        sent_ns = self._left.get(request_id)
        if sent_ns:
            self._settle(sent_ns.popleft())

    def idle(self, at_ns: int, began_ns: int) -> None:
        """The detokenizer, which was started at `began_ns`, had nothing to do for IDLE_NS before `at_ns`.

        Windows that the server had passed on by then are lost. It has passed on what was sent before a later
        call that it answered; what was sent after that may still be inside the server, which may stand still.
        """
        self._detokenizer_began_ns = began_ns
        while len(self._answers) > 1 and self._answers[1][1] <= at_ns - IDLE_NS:
            self._answers.popleft()
        if self._answers and self._answers[0][1] <= at_ns - IDLE_NS:
            self._settle(self._answers[0][0])

    def is_lost_with_detokenizer(self, stream: Stream) -> bool:
        """Whether its oldest unconfirmed window was sent to a detokenizer that has died."""
        return bool(stream.unacked_ns) and stream.unacked_ns[0] < self._detokenizer_began_ns

    def is_silent(self, stream: Stream, now_ns: int) -> bool:
        """A window of it is lost: its client is gone, or the detokenizer has died."""
        if not stream.unacked_ns:
            return False
        sent_ns = stream.unacked_ns[0]
        return (
            sent_ns + SILENCE_NS < self._last_confirmed_ns
            or max(sent_ns, self._awake_since_ns) + LONG_SILENCE_NS < now_ns
        )

    def _settle(self, sent_ns: int) -> None:
        """What was sent before is confirmed or lost."""
        self._last_confirmed_ns = max(self._last_confirmed_ns, sent_ns)
        self._moved_ns = max(self._moved_ns, self._checked_ns)


def _forget(sent_ns: deque[int], done_ns: int) -> None:
    while sent_ns and sent_ns[0] <= done_ns:
        sent_ns.popleft()
