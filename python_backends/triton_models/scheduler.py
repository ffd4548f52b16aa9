"""The `scheduler` model: owns the client streams, between the tokenizer before it and the instance.

`execute` only takes requests in. One thread does everything else, so that the stream table has one writer: it
receives messages of the instances and the detokenizer, submits and cancels requests, and sends what is due.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

from python_backends.cluster.router import Router
from python_backends.engine.kinds import kind_of
from python_backends.nouns.messages import Failed, reader
from python_backends.nouns.request import Feedback, Idle, Request, WaitReason
from python_backends.nouns.step import Started, Tokens
from python_backends.streams.outgoing import Outgoing
from python_backends.streams.predictions import Predictions, without_subject
from python_backends.streams.table import FAILED_INSIDE, StreamTable
from python_backends.text.detokenize.detokenizer import context_tokens
from python_backends.triton_models.instance_watch import InstanceWatch
from python_backends.triton_models.life import Life, watched
from python_backends.triton_models.metrics_export import MetricsExport
from python_backends.triton_models.predictor_link import PredictorLink
from python_backends.triton_models.tensors import (
    Blobs,
    ForgedError,
    SingleUse,
    effective_settings,
    failure,
    final,
    run_directory,
)
from python_backends.watching.instance_state import CLOSING
from python_backends.watching.metrics import EXPORT_EVERY_S, Metrics
from python_backends.watching.restarts import read_restarts
from python_backends.wires.records import RecordsEnd
from python_backends.wires.sessions import SchedulerEnd

if TYPE_CHECKING:
    from python_backends.triton_models.tracing import StreamTraceSpans

log = logging.getLogger("gapless.scheduler")

REQUEST = reader(Request)
LONG_WAIT_S = 10.0  # requests wait for longer: the log says why
COMPLAIN_EVERY_S = 60.0  # about the same failure of what no stream depends on
LOST_PART = "a part of the answer could not be sent"


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        everything = effective_settings()
        trace_url, settings = everything.server.trace_url, everything.streams
        num_processors = len(os.sched_getaffinity(0))
        if kind_of(everything).gives_way:
            num_processors += 1  # the loop has one to itself
        settings = replace(settings, sender_load=settings.sender_load * num_processors)  # of one of them
        self._blobs = Blobs()
        self._single_use = SingleUse()
        self._closing = run_directory() / CLOSING
        self._metrics = Metrics()
        router = Router(everything.cluster) if everything.cluster.most_instances > 1 else None
        self._table = StreamTable(settings, time.monotonic_ns, context_tokens, self._metrics, router)
        table = self._table
        self._link = SchedulerEnd(run_directory(), settings.dead_after_s)
        self._instances = InstanceWatch(everything.cluster, run_directory(), router, table, self._metrics)
        self._loads = self._instances.loads
        self._readers: dict[type, Callable[[Any], None]] = {
            Tokens: table.tokens,
            Started: table.started,
            Feedback: table.feedback,
            Idle: table.idle,
            Failed: table.failed,
            **self._instances.readers,
        }
        self._spans = _spans(trace_url)
        self._predictions = Predictions(
            self._metrics, everything.prediction.keep_prompts, everything.prediction.sample_every_s
        )
        self._predictor = PredictorLink(self._blobs, self._link.wake) if everything.predicts_lengths else None
        # else nothing is learned
        self._records = RecordsEnd(run_directory()) if everything.predicts_lengths else None
        self._export = MetricsExport(self._metrics)
        self._arrivals: SimpleQueue[tuple[Request, Any]] = SimpleQueue()
        self._news: deque[Any] = deque()  # from the instance and the detokenizer, not yet taken
        self._complained_s: dict[str, float] = {}
        self._exported_s = time.monotonic()
        self._tell_at_s = time.monotonic() + LONG_WAIT_S
        self._stopping = False
        self.life = Life("scheduler")
        self._thread = threading.Thread(target=self._run, name="streams")
        self._thread.start()

    @watched
    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                message = self._blobs.message(request, "request", REQUEST)
                self._single_use.check(message, time.monotonic_ns())
                if self._spans is not None:
                    self._observe("a trace was lost", partial(self._spans.begin, message.request_id, request))
                self._arrivals.put((message, sender))
            except ForgedError as error:
                final(sender, failure(str(error), "INVALID_ARG"))
        self._link.wake()

    def finalize(self) -> None:
        self._stopping = True
        self._link.wake()
        self._thread.join()
        self.life.end()
        self._link.close()
        if self._records is not None:
            self._records.close()
        if self._spans is not None:
            self._spans.close()

    # --- the streams thread

    def _run(self) -> None:
        while not self._stopping:
            self.life.turned()
            try:
                self._turn()
            except Exception:
                log.exception("a turn of the streams failed; open streams end with an error")
                self._table.fail_all(FAILED_INSIDE)

    def _turn(self) -> None:
        wait_s = 0.0 if self._news else min(self._table.wait_s(), self._instances.wait_s())
        self._news.extend(self._link.receive(wait_s))
        while self._news:  # one that raises takes none of the others along
            news = self._news.popleft()
            self._readers[type(news)](news)
        self._observe("orders could not be read", self._instances.take_orders)
        self._observe("the instances could not be looked after", self._instances.look)
        self._accept()
        self._observe("lengths could not be predicted", self._predict)
        for instance, messages in self._table.outbox().items():
            self._link.send(instance, messages)
        started_s = time.monotonic()
        for outgoing in self._table.due():
            self._try_to_send(outgoing)
        self._observe("ended answers could not be recorded", self._log_ended)
        now_s = time.monotonic()
        self._table.delivery.spent(now_s - started_s, now_s)
        if now_s - self._exported_s >= EXPORT_EVERY_S:
            self._exported_s = now_s
            if self._closing.exists():
                self._table.fail_all("the server is shutting down")
            self._observe("restarts could not be counted", self._count_restarts)
            self._observe("metrics could not be exported", self._export_metrics)
            self._observe("the status of the instances could not be written", self._instances.write_status)

    def _observe(self, what: str, action: Callable[[], object]) -> None:
        """Does something that no stream depends on. A failure is logged, at most once a minute, and has no
        other effect.
        """
        try:
            action()
        except Exception:
            now_s = time.monotonic()
            if now_s - self._complained_s.get(what, -math.inf) >= COMPLAIN_EVERY_S:
                self._complained_s[what] = now_s
                log.exception("%s; streams go on", what)

    def _accept(self) -> None:
        while not self._arrivals.empty():
            request, sender = self._arrivals.get_nowait()
            refusal = self._table.accept(without_subject(request), sender)
            if refusal:
                if self._spans is not None:
                    self._spans.forget(request.request_id)
                self._end(request.request_id, sender, failure(refusal, "UNAVAILABLE"), "its refusal")
            else:
                self._predictions.opened(request)

    def _predict(self) -> None:
        """Takes the predictor's answers and asks for lengths that can be used, without waiting for either."""
        if self._predictor is None:
            return
        if self._loads.is_contested or len(self._table) > self._loads.num_slots:
            self._predictions.ask_all(self._table.is_seated)
        for request_id, answer in self._predictor.take():
            if not self._predictions.answered(request_id, answer):
                self._predictor.complain("it answers what can't be a length")
            elif answer.prediction is not None:
                self._table.predicted(request_id, answer.prediction)
        if self._predictor.is_free:
            self._predictor.ask(self._predictions.take_questions())

    def _log_ended(self) -> None:
        ended = self._table.take_ended()
        if self._spans is not None:
            for stream in ended:
                self._observe("a trace was lost", partial(self._spans.end, stream, time.monotonic_ns()))
        for stream in ended:
            self._predictions.ended(stream.request, len(stream.tokens), stream.finish)
        if self._records is not None:
            self._records.send(self._predictions.take_records())

    def _try_to_send(self, outgoing: Outgoing) -> None:
        """A response that can't be sent ends its own stream and touches no other."""
        try:
            self._send(outgoing)
        except Exception:
            log.exception("request %d: a response could not be sent", outgoing.request_id)
            if outgoing.final:  # the sender is still open if it was the last window that could not be sent
                self._end(outgoing.request_id, outgoing.sender, failure(LOST_PART), "its end")
            else:
                self._table.not_sent(outgoing, LOST_PART)

    def _send(self, outgoing: Outgoing) -> None:
        """The last window and the end of its stream are two calls.

        A call that says "this is the end" closes its sender even if it fails, and a window may need shared
        memory that can't be had. The end itself needs almost no memory.
        """
        began_ns = time.monotonic_ns()
        if outgoing.window is not None:
            outgoing.sender.send(
                pb_utils.InferenceResponse([self._blobs.tensor("token_window", outgoing.window)])
            )
            self._table.handed_over(outgoing, began_ns)
        if outgoing.final:
            final(outgoing.sender, failure(outgoing.error) if outgoing.error else None)

    def _end(self, request_id: int, sender: Any, response: Any, what: str) -> None:
        """Ends a request that is not in the table. If `what` can't be sent, no other stream notices."""
        try:
            final(sender, response)
        except Exception:
            log.exception("request %d: %s could not be sent", request_id, what)

    def _export_metrics(self) -> None:
        gauge = self._metrics.gauge
        self._loads.export()
        gauge("gapless_requests_waiting", max(0, len(self._table) - self._loads.num_running))
        waiting = self._table.waiting(self._loads.wait_reasons)
        for reason, count in waiting.items():
            gauge("gapless_waiting", count, (("reason", reason.value),))
        self._tell_why(waiting)
        gauge("gapless_queued_tokens", self._table.num_queued_tokens)
        gauge("gapless_coalescing_seconds", self._table.delivery.interval_s)
        began_ns = time.monotonic_ns()
        self._export.export()
        self._table.server_answered(began_ns)

    def _tell_why(self, waiting: dict[WaitReason, int]) -> None:
        """Logs why requests wait, if there have been some for LONG_WAIT_S, and then once a minute."""
        now_s = time.monotonic()
        if not any(waiting.values()):
            self._tell_at_s = now_s + LONG_WAIT_S
        elif now_s >= self._tell_at_s:
            self._tell_at_s = now_s + COMPLAIN_EVERY_S
            reasons = ", ".join(f"{count} {reason}" for reason, count in waiting.items() if count)
            log.warning(  # the processes of Triton's models print no less than warnings
                "%d requests wait for a slot: %s (docs/waiting.md)",
                sum(waiting.values()),
                reasons,
            )

    def _count_restarts(self) -> None:
        start_time_s, counts = read_restarts(run_directory())
        self._metrics.gauge("gapless_start_time_seconds", start_time_s)
        for process, count in counts.items():
            self._metrics.total("gapless_restarts_total", count, (("process", process),))


def _spans(trace_url: str) -> StreamTraceSpans | None:
    if not trace_url:
        return None
    from python_backends.triton_models.tracing import StreamTraceSpans  # brings OpenTelemetry

    return StreamTraceSpans(trace_url)
