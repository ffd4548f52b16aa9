"""The table of client streams: from "accepted" to the one final answer of each.

Owns every open stream; one thread of the scheduler model calls it. Tokens of instances and feedback of the
detokenizer come in; what is to be sent, submitted and cancelled comes out. It knows neither sockets nor
Triton: `sender` is only carried along, `clock` returns monotonic nanoseconds. What an instance has of the
streams is in `submissions`, which to look at in `ready_queue`, when their windows are sent in `delivery`,
which are not confirmed in `unconfirmed`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, ValuesView
from typing import Any

import numpy as np

from python_backends.nouns.messages import Failed, ToInstance
from python_backends.nouns.request import Feedback, Finish, Idle, LengthPrediction, Request, WaitReason
from python_backends.nouns.step import Evicted, PromptLogProbs, Started, Tokens
from python_backends.settings import StreamSettings
from python_backends.streams.delivery import Delivery
from python_backends.streams.log_probs import UNKNOWN, TokenLogProbs, by_row
from python_backends.streams.outgoing import Outgoing
from python_backends.streams.predictions import within
from python_backends.streams.ready_queue import ReadyQueue
from python_backends.streams.stream import Stream
from python_backends.streams.stream_metrics import StreamMetrics
from python_backends.streams.submissions import Dispatcher, OnlyInstance, Submissions
from python_backends.streams.unconfirmed import Unconfirmed
from python_backends.watching.metrics import Metrics

log = logging.getLogger("gapless.scheduler")

FAILED_INSIDE = "the scheduler failed inside"
SERVER_ENDS = "the server is shutting down"
RAN_ALONE = "the engine failed while it ran this request alone"
S = 1_000_000_000
MAX_WAIT_NS = S
# a stream without text gets one empty chunk after this time, so that a broken connection is noticed
FIRST_CHUNK_NS = S // 2


class StreamTable:
    def __init__(
        self,
        settings: StreamSettings,
        clock: Callable[[], int],
        context_tokens: Callable[[tuple[str, ...]], int],
        metrics: Metrics,
        dispatcher: Dispatcher | None = None,
        num_processors: int = 1,
    ) -> None:
        """`dispatcher`: decides which instance gets a stream; None: there is only one. `num_processors`: of
        the machine.
        """
        self._settings = settings
        self._clock = clock
        self._context_tokens = context_tokens
        self._metrics = StreamMetrics(metrics)
        self._streams: dict[int, Stream] = {}  # in order of acceptance
        self._ready = ReadyQueue()
        self._unconfirmed = Unconfirmed()
        self.delivery = Delivery(self._unconfirmed, self._streams, clock(), num_processors)
        self.submissions = Submissions(dispatcher or OnlyInstance())  # moves change these too
        self._ended: list[Stream] = []

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def num_queued_tokens(self) -> int:
        """Of the prompts of streams without a slot."""
        return self.submissions.num_queued_tokens

    @property
    def streams(self) -> ValuesView[Stream]:
        """All open streams, in the order of their acceptance."""
        return self._streams.values()

    def find(self, request_id: int) -> Stream | None:
        return self._streams.get(request_id)

    def waiting(self, reasons: Mapping[int, WaitReason | None]) -> dict[WaitReason, int]:
        """How many streams have no slot, by the reason. `reasons`: by instance, of those that it has."""
        return self.submissions.waiting(self._streams.values(), reasons)

    # --- what comes in

    def accept(self, request: Request, sender: Any, prefix_keys: list[bytes] | None = None) -> str:
        """Opens a stream, or says why it can't be had now."""
        refusal = self._refusal(request)
        if refusal:
            self._metrics.refused()
            return refusal
        context = self._context_tokens(request.stop_words)
        stream = Stream(request, sender, context, self._clock(), prefix_keys)
        self._streams[request.request_id] = stream
        self.submissions.add(stream)
        self._ready.touch(request.request_id)
        self._metrics.accepted(stream)
        return ""

    def started(self, started: Started) -> None:
        stream = self._streams.get(started.request_id)
        if stream is None or stream.request_epoch != started.request_epoch:
            return
        if not stream.lost_slot:
            num_hits = min(started.num_prefix_hit_tokens, len(stream.request.prompt) - stream.num_cached)
            stream.num_cached += num_hits
            self._metrics.found_prefix(num_hits)
        self.submissions.started(stream)
        if stream.started_ns == 0:
            stream.started_ns = self._clock()
            self._metrics.first_started(stream)

    def evicted(self, evicted: Evicted) -> None:
        """One that has ended waits for nothing."""
        stream = self._streams.get(evicted.request_id)
        if stream is None or stream.finish != Finish.RUNNING:
            return
        if stream.request_epoch == evicted.request_epoch:
            self.submissions.evicted(stream)

    def prompt_log_probs(self, scores: PromptLogProbs) -> None:
        """Those of one step, from lives that may give the first token of an answer."""
        lives = np.stack([scores.request_ids, scores.request_epochs], 1)
        for request_id, request_epoch in np.unique(lives, axis=0).tolist():
            stream = self._streams.get(request_id)
            if stream is None or stream.prompt_scores is None or not stream.accepts(request_epoch, 0):
                continue
            its = scores.request_ids == request_id
            stream.prompt_scores.put(scores.indices[its], scores.values.kept(its))

    def tokens(self, tokens: Tokens) -> None:
        """New tokens of one step. Those of an earlier life of a request are dropped, except those from before
        its last move that have not come yet.
        """
        rows = zip(
            tokens.request_ids.tolist(),
            tokens.request_epochs.tolist(),
            tokens.indices.tolist(),
            tokens.tokens.tolist(),
            tokens.finishes.tolist(),
            strict=True,
        )
        scores, now, count = by_row(tokens.log_probs), self._clock(), 0
        for row, (request_id, request_epoch, index, token, finish) in enumerate(rows):
            stream = self._streams.get(request_id)
            if stream is not None and stream.accepts(request_epoch, index):
                count += self._append(stream, now, index, token, finish, scores.get(row, UNKNOWN))
        if count:
            self.delivery.tokens_came(now)
            self._metrics.generated(count)

    def feedback(self, feedback: Feedback) -> None:
        """What the detokenizer found in a window: it is confirmed, and may have ended the stream."""
        stream = self._streams.get(feedback.request_id)
        if stream is None:
            self._unconfirmed.confirmed_of_left(feedback.request_id)
            return
        self._ready.touch(stream.request_id)
        self._unconfirmed.confirmed(stream)
        stream.confirm(feedback.num_tokens, feedback.answered)
        if feedback.error:
            self._lose(stream, feedback.error)
        elif feedback.stopped_at and stream.finish in (Finish.RUNNING, Finish.LENGTH, Finish.STOP):
            self._end(stream, Finish.STOP, min(feedback.stopped_at, len(stream.tokens)))
        elif feedback.gone:
            self._end(stream, Finish.CANCELLED)

    def idle(self, idle: Idle) -> None:
        """The detokenizer has handled everything that it received: windows that were sent long before and are
        still unconfirmed are lost.
        """
        self._unconfirmed.idle(idle.at_ns, idle.began_ns)

    def predicted(self, request_id: int, prediction: LengthPrediction) -> None:
        """How long an answer is expected to be; comes at any time, or never."""
        stream = self._streams.get(request_id)
        if stream is None or stream.finish != Finish.RUNNING:
            return
        stream.prediction = within(prediction, stream.request.sampling)
        self.submissions.predicted(stream)

    def is_seated(self, request_id: int) -> bool:
        """Whether it has a slot, as far as we have heard."""
        stream = self._streams.get(request_id)
        return stream is not None and stream.seated

    def handed_over(self, outgoing: Outgoing, began_ns: int) -> None:
        """The server has taken this window, whose sending began at
        `began_ns`: from now on it may be missed.
        """
        now = self._clock()
        self._unconfirmed.server_answered(began_ns, now)
        stream = self._streams.get(outgoing.request_id)
        if stream is not None:
            self._unconfirmed.sent(stream, now, is_probe=outgoing.is_probe)

    def server_answered(self, began_ns: int) -> None:
        """A call of the server that began then has ended."""
        self._unconfirmed.server_answered(began_ns, self._clock())

    def instance_ready(self, instance: int) -> None:
        self.submissions.instance_ready(instance)

    def instance_lost(self, instance: int, silent_s: float = 0.0) -> None:
        """The instance died, or stalled for `silent_s`: what it had is to be submitted again, after what was
        delivered.
        """
        ran = [stream for stream in self._streams.values() if stream.seated and stream.instance == instance]
        culprit = self.submissions.instance_lost(instance, self._streams.values(), self._clock())
        self._metrics.instance_lost([stream for stream in ran if stream is not culprit])
        if culprit is not None:
            why = f" (silent for {silent_s:.0f} s: see streams.dead_after_s)" if silent_s else ""
            culprit.error = f"{RAN_ALONE}{why}; it is not tried again"
            self._end(culprit, Finish.ERROR)

    def failed(self, failed: Failed) -> None:
        """An instance can't go on with a request, in this life of it. One that has ended has its answer."""
        stream = self._streams.get(failed.request_id)
        if stream is None or stream.finish != Finish.RUNNING:
            return
        if failed.request_epoch == stream.request_epoch:
            self.fail(failed.request_id, failed.error)

    def fail(self, request_id: int, error: str) -> None:
        """Ends one stream with an error, after the text so far."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.error = error
            self._end(stream, Finish.ERROR)

    def not_sent(self, outgoing: Outgoing, error: str) -> None:
        """The server has not taken this window, so its stream ends with an error."""
        stream = self._streams.get(outgoing.request_id)
        if stream is not None:
            self._unconfirmed.not_sent(stream)
            self._lose(stream, error)

    def fail_all(self, error: str) -> None:
        for request_id in list(self._streams):
            self.fail(request_id, error)

    # --- what goes out

    def outbox(self) -> dict[int, list[ToInstance]]:
        """What each instance is to be told now, by its number."""
        return self.submissions.outbox(self._streams.values(), self._clock())

    def take_ended(self) -> list[Stream]:
        """The streams that have left the table since the last time."""
        ended, self._ended = self._ended, []
        return ended

    def due(self) -> list[Outgoing]:
        """The responses that are to be sent now; every stream that has ended leaves the table here."""
        now = self._clock()
        self._unconfirmed.forget_settled(now)
        ready = [self._streams[number] for number in self._ready.take(now)]
        outgoing = self._of_each(ready, self._look_at, now)
        held = self.delivery.take_held(now, len(outgoing))
        outgoing += self._of_each(held, self._next_window, now)
        outgoing += self._of_each(self.delivery.take_quiet(now), self._probe, now)
        outgoing.sort(key=lambda out: not out.is_urgent)
        self._metrics.sent(len(outgoing))
        return outgoing

    def wait_s(self) -> float:
        """How long nothing will be due if nothing comes in."""
        if not self.submissions.is_told:
            return 0.0
        now = self._clock()
        return max(0, self.delivery.next_ns(self._ready.next_ns(now + MAX_WAIT_NS)) - now) / S

    def check_integrity(self) -> None:
        """Re-derives from the streams what is kept in addition. Raises AssertionError."""
        self.submissions.check_integrity(self._streams.values())
        self._ready.check_integrity(set(self._streams))
        self.delivery.check_integrity(set(self._streams))

    # --- inside

    def _refusal(self, request: Request) -> str:
        settings, num_tokens = self._settings, len(request.prompt)
        if len(self._streams) >= settings.max_open or request.request_id in self._streams:
            return (
                f"too many open requests: {len(self._streams)} are open, the limit is {settings.max_open}"
                " (streams.max_open)"
            )
        num_queued, goes_on = self.num_queued_tokens, bool(request.delivered)  # it was let in before
        if num_queued and num_queued + num_tokens > settings.max_queued_tokens and not goes_on:
            return (
                f"too many queued tokens: {num_queued} wait for a slot and this prompt has"
                f" {num_tokens}, the limit is {settings.max_queued_tokens} (streams.max_queued_tokens)"
            )
        return ""

    def _append(
        self, stream: Stream, now: int, index: int, token: int, finish: int, scores: TokenLogProbs
    ) -> int:
        """How many tokens it has more."""
        count = stream.append(index, token, finish, scores)
        if count:
            self._ready.touch(stream.request_id)
        if count and stream.first_token_ns == 0:
            stream.first_token_ns = now
            self._metrics.first_token(stream)
        return count

    def _end(self, stream: Stream, finish: Finish, num_tokens: int | None = None) -> None:
        """Ends a stream from our side; its instance gets a Cancel if it still works on it."""
        self.submissions.cancel(stream)
        stream.end(finish, num_tokens)
        self._ready.touch(stream.request_id)

    def _lose(self, stream: Stream, error: str) -> None:
        """Ends a stream with an error because a part of its text is lost: nothing may follow the gap."""
        stream.drop_unsent()
        self.fail(stream.request_id, error)

    def _of_each(
        self, streams: list[Stream], response: Callable[[Stream, int], Outgoing | None], now: int
    ) -> list[Outgoing]:
        """The responses of these streams. If one fails, its stream ends with an error and the others go on:
        those that have ended are no longer in the table, so only this turn can send their last responses.
        """
        outgoing = []
        for stream in streams:
            try:
                out = response(stream, now)
            except Exception:
                log.exception("request %d: its next response failed; it ends here", stream.request_id)
                out = self._failed_inside(stream)
            if out is not None:
                outgoing.append(out)
        return outgoing

    def _failed_inside(self, stream: Stream) -> Outgoing | None:
        """The stream ends with an error when its windows are confirmed; at once if that has failed, too."""
        if stream.error != FAILED_INSIDE:
            self._lose(stream, FAILED_INSIDE)
            return None
        self._remove(stream)
        return Outgoing(stream.request_id, stream.sender, None, final=True, error=FAILED_INSIDE)

    def _look_at(self, stream: Stream, now: int) -> Outgoing | None:
        """The response that is due for a stream by itself, if any.
        Sets when the stream is looked at again.
        """
        outgoing = self._due(stream, now)
        if outgoing is not None and outgoing.final:
            return outgoing
        self.delivery.wait(stream, now)
        self._look_again(stream, now)
        return outgoing

    def _look_again(self, stream: Stream, now: int) -> None:
        self._ready.wake_at(stream.request_id, self.delivery.wake_ns(stream, now))

    def _next_window(self, stream: Stream, now: int, emit: bool = False) -> Outgoing:
        outgoing = Outgoing(stream.request_id, stream.sender, stream.send_window(now, emit), final=False)
        self._look_again(stream, now)
        return outgoing

    def _due(self, stream: Stream, now: int) -> Outgoing | None:
        request = stream.request
        if request.deadline_ns and now >= request.deadline_ns and stream.finish == Finish.RUNNING:
            self._end(stream, Finish.DEADLINE)
        if stream.finish == Finish.RUNNING and self._unconfirmed.is_silent(stream, now):
            self._end_silent(stream)
        if stream.finish == Finish.ERROR:
            return self._before_error(stream, now)
        if stream.finish != Finish.RUNNING:
            return self._last(stream, now)
        return self._next_window(stream, now) if self.delivery.may_send_first(stream) else None

    def _probe(self, stream: Stream, now: int) -> Outgoing:
        """An empty window for a stream that waits; after a while a chunk without text goes out, so that a
        broken connection shows.
        """
        emit = not stream.chunked and now - stream.request.arrival_ns >= FIRST_CHUNK_NS
        return self._next_window(stream, now, emit)

    def _end_silent(self, stream: Stream) -> None:
        """A window was lost with a detokenizer that died, or its client is gone."""
        if self._unconfirmed.is_lost_with_detokenizer(stream):
            self._unconfirmed.forget(stream)
            self._lose(stream, "a part of the answer was lost, because the detokenizer was restarted")
        else:
            self._end(stream, Finish.CANCELLED)

    def _before_error(self, stream: Stream, now: int) -> Outgoing | None:
        """A stream gets the text so far, and the error once the detokenizer is done with it."""
        if stream.request.stream and stream.has_news:
            return Outgoing(
                stream.request_id, stream.sender, stream.send_window_before_error(now), final=False
            )
        return self._last(stream, now) if self.delivery.may_fail(stream, now) else None

    def _last(self, stream: Stream, now: int) -> Outgoing:
        """The stream leaves the table when its response is made: one that can't be made fails it."""
        failed = stream.finish == Finish.ERROR
        window, error = (None, stream.error) if failed else (stream.send_window(now, emit=True), "")
        self._metrics.ended(stream, now)
        self._remove(stream)
        return Outgoing(stream.request_id, stream.sender, window, final=True, error=error)

    def _remove(self, stream: Stream) -> None:
        self.submissions.remove(stream)
        self._ready.drop(stream.request_id)
        self.delivery.drop(stream)
        self._unconfirmed.left(stream)
        del self._streams[stream.request_id]
        self._ended.append(stream)
