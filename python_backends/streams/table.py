"""The table of client streams: from "accepted" to the one final answer of each.

Owns every open stream; one thread calls it. Tokens of instances and feedback of the detokenizer come in; what is to be sent, submitted
and cancelled comes out. It knows neither sockets nor Triton: `sender` is only carried along, `clock` returns monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from python_backends.config import StreamSettings
from python_backends.messages import Cancel, Predicted, Submit
from python_backends.metrics import Metrics
from python_backends.request import Feedback, Finish, Idle, LengthPrediction, Request, TokenWindow
from python_backends.step import Started, Tokens
from python_backends.streams.log_probs import UNKNOWN, TokenLogProbs, by_row
from python_backends.streams.pacing import Pacing
from python_backends.streams.predictions import within
from python_backends.streams.quarantine import Quarantine
from python_backends.streams.stream import Stream
from python_backends.streams.timers import Timers

MS = 1_000_000
S = 1_000_000_000
MAX_WAIT_NS = S
LONG_SILENCE_NS = 30 * S  # a window unconfirmed for so long, whatever others see
SILENCE_NS = S // 2  # a window sent so long before a confirmed one, or before the detokenizer had nothing to do: its client is gone
LOOK_AGAIN_NS = S // 4  # at a stream with unconfirmed windows


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One response of the scheduler model; `final` is the last of its stream. With `error` there is no window."""

    request_id: int
    sender: Any
    window: TokenWindow | None
    final: bool
    error: str = ""

    @property
    def is_urgent(self) -> bool:
        """A first text or a last one: somebody waits for it alone."""
        return self.final or (self.window is not None and self.window.num_sent == 0)


class StreamTable:
    def __init__(
        self, settings: StreamSettings, clock: Callable[[], int], context_tokens: Callable[[tuple[str, ...]], int], metrics: Metrics
    ) -> None:
        self.pacing = Pacing(settings.coalescing_ms / 1000, settings.sender_load)
        self.metrics = metrics
        self.on_end: Callable[[Stream, int], object] | None = None  # called with a stream that leaves the table, and the time
        self._settings = settings
        self._clock = clock
        self._context_tokens = context_tokens
        self._streams: dict[int, Stream] = {}  # in order of acceptance
        self._quarantine = Quarantine()
        self._cancels: list[Cancel] = []
        self._predicted: list[Predicted] = []  # what the instance is still to be told
        self._ended: list[Stream] = []
        self._instance_ready = False
        self.num_queued_tokens = 0  # of the prompts of streams without a slot
        self._unsubmitted: dict[int, Stream] = {}  # what an instance may be given
        self._touched: dict[int, Stream] = {}  # something happened to them: `due` looks at them, and at nobody else
        self._pending: dict[int, Stream] = {}  # their tokens wait for company
        self._timers = Timers()  # when `due` looks at a stream although nothing happened to it
        self._flush_ns = 0  # when the oldest token that waits for company is sent; 0: none waits
        self._last_confirmed_ns = 0  # when the youngest confirmed window was sent

    def __len__(self) -> int:
        return len(self._streams)

    # --- what comes in

    def accept(self, request: Request, sender: Any) -> str:
        """Opens a stream, or says why it can't be had now."""
        refusal = self._refusal(request)
        if refusal:
            self._count_outcome("refused")
            return refusal
        context = self._context_tokens(request.stop_words)
        stream = Stream(request, sender, context, self._clock())
        for streams in (self._streams, self._unsubmitted, self._touched):
            streams[request.request_id] = stream
        self.num_queued_tokens += len(request.prompt)
        self.metrics.count("gapless_prompt_tokens_total", len(request.prompt))
        return ""

    def started(self, started: Started) -> None:
        stream = self._streams.get(started.request_id)
        if stream is None or stream.epoch != started.epoch:
            return
        self._seat(stream, True)
        self.metrics.count("gapless_prefix_hit_tokens_total", started.num_prefix_hit_tokens)
        if stream.started_ns == 0:
            stream.started_ns = self._clock()
            self.metrics.observe("gapless_queue_time_seconds", (stream.started_ns - stream.request.arrival_ns) / S)

    def tokens(self, tokens: Tokens) -> None:
        """New tokens of one step. Those of an earlier life of a request are dropped."""
        rows = zip(
            tokens.request_ids.tolist(),
            tokens.epochs.tolist(),
            tokens.indices.tolist(),
            tokens.tokens.tolist(),
            tokens.finishes.tolist(),
            strict=True,
        )
        scores = by_row(tokens.log_probs)
        for row, (request_id, epoch, index, token, finish) in enumerate(rows):
            stream = self._streams.get(request_id)
            if stream is not None and stream.epoch == epoch:
                self._append(stream, index, token, finish, scores.get(row, UNKNOWN))

    def feedback(self, feedback: Feedback) -> None:
        """What the detokenizer found in a window: it is confirmed, and may have ended the stream."""
        stream = self._streams.get(feedback.request_id)
        if stream is None:
            return
        self._touched[stream.request_id] = stream
        if stream.unacked_ns:
            self._last_confirmed_ns = max(self._last_confirmed_ns, stream.unacked_ns.popleft())
        stream.num_acked = max(stream.num_acked, feedback.num_tokens)
        stream.chunked |= feedback.answered
        if feedback.stopped_at and stream.finish in (Finish.RUNNING, Finish.LENGTH, Finish.STOP):
            self._end(stream, Finish.STOP, min(feedback.stopped_at, len(stream.tokens)))
        elif feedback.gone:
            self._end(stream, Finish.CANCELLED)

    def idle(self, idle: Idle) -> None:
        """The detokenizer has dealt with everything that reached it: what is unconfirmed since long before is lost."""
        self._last_confirmed_ns = max(self._last_confirmed_ns, idle.at_ns)

    def predicted(self, request_id: int, prediction: LengthPrediction) -> None:
        """How long an answer is expected to be; comes at any time, or never."""
        stream = self._streams.get(request_id)
        if stream is None or stream.finish != Finish.RUNNING:
            return
        stream.prediction = within(prediction, stream.request.sampling)
        if stream.submitted:
            self._predicted.append(Predicted(request_id, stream.prediction))

    def is_seated(self, request_id: int) -> bool:
        """Whether it has a slot, as far as we have heard."""
        stream = self._streams.get(request_id)
        return stream is not None and stream.seated

    def handed_over(self, request_id: int) -> None:
        """The server has taken the last window of this stream: from now on it may be missed."""
        stream = self._streams.get(request_id)
        if stream is not None and stream.unacked_ns:
            stream.unacked_ns[-1] = self._clock()

    def instance_ready(self) -> None:
        self._instance_ready = True

    def instance_lost(self) -> None:
        """The instance died or stalled: what it had is to be submitted again, behind what was delivered."""
        self._instance_ready = False
        culprit = self._quarantine.crashed(self._streams.values())
        self.metrics.count("gapless_instance_losses_total")
        for stream in self._streams.values():
            self._withdraw(stream)
        if culprit is not None:
            culprit.error = "the engine failed while it ran this request alone; it is not tried again"
            self._end(culprit, Finish.ERROR)

    def fail(self, request_id: int, error: str) -> None:
        """Ends one stream with an error."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.error = error
            self._end(stream, Finish.ERROR)

    def fail_all(self, error: str) -> None:
        for request_id in list(self._streams):
            self.fail(request_id, error)

    # --- what goes out

    def outbox(self) -> list[Cancel | Submit | Predicted]:
        """What the instance is to be told now."""
        self._end_trial()
        cancels, self._cancels = self._cancels, []
        predicted, self._predicted = self._predicted, []
        return [*cancels, *predicted, *self._submissions()]

    def take_ended(self) -> list[Stream]:
        """The streams that have left the table since the last time."""
        ended, self._ended = self._ended, []
        return ended

    def due(self) -> list[Outgoing]:
        """The responses that are to be sent now; every stream that has ended leaves the table here."""
        now = self._clock()
        flush = now >= self._flush_ns
        looked_at, self._touched = self._touched, {}
        looked_at |= {number: self._streams[number] for number in self._timers.pop_due(now)}
        if flush:
            looked_at |= self._pending
            self._flush_ns, self._pending = 0, {}
        outgoing = [out for stream in looked_at.values() if (out := self._look_at(stream, now, flush)) is not None]
        outgoing.sort(key=lambda out: not out.is_urgent)
        self.metrics.count("gapless_responses_total", len(outgoing))
        return outgoing

    def wait_s(self) -> float:
        """How long nothing will be due if nothing comes in."""
        if self._cancels or self._touched or self._predicted:
            return 0.0
        now = self._clock()
        wake = self._timers.next_ns(now + MAX_WAIT_NS)
        if self._pending:
            wake = min(wake, self._flush_ns)
        return max(0, wake - now) / S

    def check_integrity(self) -> None:
        """Re-derives from the streams what is kept beside them. Raises AssertionError."""
        streams = self._streams.values()
        queued = sum(len(stream.request.prompt) for stream in streams if not stream.seated)
        assert queued == self.num_queued_tokens, "queued tokens are off"
        ready = {stream.request_id for stream in streams if not stream.submitted and stream.finish == Finish.RUNNING}
        assert ready == set(self._unsubmitted), "a stream waits for an instance that has it, or for none"
        looked_at = {*self._touched, *self._timers}
        assert looked_at == set(self._streams), "a stream is never looked at again, or one that has ended is"
        assert set(self._pending) <= set(self._streams), "a stream that has ended waits for company"

    # --- inside

    def _refusal(self, request: Request) -> str:
        settings, num_tokens = self._settings, len(request.prompt)
        if len(self._streams) >= settings.max_open or request.request_id in self._streams:
            return f"too many open requests: {len(self._streams)} are open, the limit is {settings.max_open} (streams.max_open)"
        if self.num_queued_tokens and self.num_queued_tokens + num_tokens > settings.max_queued_tokens:
            return (
                f"too many queued tokens: {self.num_queued_tokens} wait for a slot and this prompt has {num_tokens}, "
                f"the limit is {settings.max_queued_tokens} (streams.max_queued_tokens)"
            )
        return ""

    def _seat(self, stream: Stream, seated: bool) -> None:
        """Books that it has a slot, or has none: the prompts of those that have none are queued."""
        if seated != stream.seated:
            self.num_queued_tokens += -len(stream.request.prompt) if seated else len(stream.request.prompt)
            stream.seated = seated

    def _submissions(self) -> list[Submit | Predicted]:
        if not self._instance_ready or not self._unsubmitted:
            return []
        chosen = self._quarantine.admissible(self._unsubmitted.values(), self._streams.values())
        for stream in chosen:
            stream.submitted = True
            del self._unsubmitted[stream.request_id]
        submits = [Submit(stream.request, np.array(stream.tokens, np.int32), stream.epoch) for stream in chosen]
        return [*submits, *(Predicted(stream.request_id, stream.prediction) for stream in chosen if stream.prediction is not None)]

    def _append(self, stream: Stream, index: int, token: int, finish: int, scores: TokenLogProbs) -> None:
        count = stream.append(index, token, finish, scores)
        if not count:
            return
        self._touched[stream.request_id] = stream
        self.metrics.count("gapless_generated_tokens_total", count)
        if self._flush_ns == 0:
            self._flush_ns = self._clock() + int(self.pacing.interval_s * S)
        if stream.first_token_ns == 0:
            stream.first_token_ns = self._clock()
            waited_ns = stream.first_token_ns - stream.request.arrival_ns
            self.metrics.observe("gapless_time_to_first_token_seconds", waited_ns / S)

    def _end(self, stream: Stream, finish: Finish, num_tokens: int | None = None) -> None:
        """Ends a stream from our side; its instance is told if it is still at work on it."""
        if stream.submitted and stream.finish == Finish.RUNNING:
            self._cancels.append(Cancel(stream.request_id))
        stream.end(finish, num_tokens)
        self._unsubmitted.pop(stream.request_id, None)
        self._touched[stream.request_id] = stream

    def _withdraw(self, stream: Stream) -> None:
        """No instance has the request any more."""
        self._seat(stream, False)
        stream.submitted = False
        stream.epoch += 1
        stream.early.clear()
        if stream.finish == Finish.RUNNING:
            self._unsubmitted[stream.request_id] = stream

    def _end_trial(self) -> None:
        stream = self._quarantine.acquitted()
        if stream is not None and stream.finish == Finish.RUNNING:
            self._cancels.append(Cancel(stream.request_id))
            self._withdraw(stream)

    def _look_at(self, stream: Stream, now: int, flush: bool) -> Outgoing | None:
        """The response that is due for a stream, if any; sees to it that the stream is looked at again."""
        outgoing = self._due(stream, now, flush)
        if outgoing is not None and outgoing.final:
            return outgoing
        if stream.has_news and stream.is_followed and not self._is_full(stream):
            self._pending[stream.request_id] = stream
        self._timers.set(stream.request_id, self._wake_ns(stream, now))
        return outgoing

    def _due(self, stream: Stream, now: int, flush: bool) -> Outgoing | None:
        request = stream.request
        if request.deadline_ns and now >= request.deadline_ns and stream.finish == Finish.RUNNING:
            self._end(stream, Finish.DEADLINE)
        if stream.finish == Finish.RUNNING and self._is_silent(stream, now):
            self._end(stream, Finish.CANCELLED)
        if stream.finish != Finish.RUNNING:
            return self._last(stream, now)
        if self._is_full(stream):
            return None
        if stream.has_news and stream.is_followed and (flush or stream.awaits_first_token):
            return Outgoing(stream.request_id, stream.sender, stream.window(now), final=False)
        return self._probe(stream, now)

    def _is_silent(self, stream: Stream, now: int) -> bool:
        """Its windows are no longer confirmed: they are not dispatched any more, or were lost with a detokenizer."""
        if not stream.unacked_ns:
            return False
        return stream.unacked_ns[0] + SILENCE_NS < max(self._last_confirmed_ns, now - LONG_SILENCE_NS + SILENCE_NS)

    def _is_quiet(self, stream: Stream, now: int) -> bool:
        return now - stream.last_sent_ns >= self._probe_every_ns()

    def _probe_every_ns(self) -> int:
        """At most a thousand probes a second over all streams."""
        return max(int(self._settings.probe_ms * MS), len(self._streams) * MS)

    def _is_full(self, stream: Stream) -> bool:
        return len(stream.unacked_ns) >= self._settings.max_unacknowledged

    def _wake_ns(self, stream: Stream, now: int) -> int:
        """When something is next due for this stream if nothing comes in: its deadline, word of a lost window, a probe."""
        wakes = [stream.request.deadline_ns] if stream.request.deadline_ns else []
        if stream.unacked_ns:
            wakes.append(now + LOOK_AGAIN_NS)
        if not self._is_full(stream):
            wakes.append(stream.last_sent_ns + self._probe_every_ns())
        return min(wakes)

    def _probe(self, stream: Stream, now: int) -> Outgoing | None:
        """An empty window for a stream that waits; after a while a chunk without text goes out, so that a broken connection shows."""
        if not self._is_quiet(stream, now):
            return None
        waited_ms = (now - stream.request.arrival_ns) / MS
        emit = not stream.chunked and waited_ms >= self._settings.first_chunk_ms
        return Outgoing(stream.request_id, stream.sender, stream.window(now, emit), final=False)

    def _last(self, stream: Stream, now: int) -> Outgoing:
        self._seat(stream, True)  # its prompt waits no longer
        self._timers.drop(stream.request_id)
        for streams in (self._streams, self._touched, self._pending):
            streams.pop(stream.request_id, None)
        self._ended.append(stream)
        self._count_outcome(stream.finish.reason)
        self._observe_end(stream, now)
        if self.on_end is not None:
            self.on_end(stream, now)
        if stream.finish == Finish.ERROR:
            return Outgoing(stream.request_id, stream.sender, None, final=True, error=stream.error)
        return Outgoing(stream.request_id, stream.sender, stream.window(now, emit=True), final=True)

    def _observe_end(self, stream: Stream, now: int) -> None:
        self.metrics.observe("gapless_e2e_latency_seconds", (now - stream.request.arrival_ns) / S)
        if len(stream.tokens) > 1:
            per_token_s = (now - stream.first_token_ns) / S / (len(stream.tokens) - 1)
            self.metrics.observe("gapless_time_per_output_token_seconds", per_token_s)

    def _count_outcome(self, outcome: str) -> None:
        self.metrics.count("gapless_requests_total", labels=(("outcome", outcome),))
