"""The `scheduler` model: owns the client streams, between the tokenizer before it and the instance.

`execute` only takes requests in. One thread does everything else, so that the stream table has one writer: it
receives messages of the instances and the detokenizer, submits and cancels requests, and sends what is due.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

from python_backends.cluster.router import Router
from python_backends.engine.kinds import kind_of
from python_backends.nouns.messages import Failed, reader
from python_backends.nouns.request import Feedback, Idle, Request
from python_backends.nouns.step import Evicted, HiddenStates, PromptLogProbs, Started, Tokens
from python_backends.prediction import token_counts
from python_backends.prediction.place import directory_of
from python_backends.prediction.regressions import Regressions
from python_backends.streams.outgoing import Outgoing
from python_backends.streams.predictions import Predictions, without_subject
from python_backends.streams.table import FAILED_INSIDE, RAN_ALONE, SERVER_ENDS, StreamTable
from python_backends.text.detokenize.detokenizer import context_tokens
from python_backends.triton_models.instance_watch import InstanceWatch
from python_backends.triton_models.life import Life, watched
from python_backends.triton_models.orders import Orders
from python_backends.triton_models.predictor_link import PredictorLink
from python_backends.triton_models.scheduler_metrics import SchedulerMetrics
from python_backends.triton_models.tensors import (
    ENGINE_FAILED,
    FAILED,
    QUEUE_FULL,
    SHUTTING_DOWN,
    Blobs,
    ForgedError,
    SingleUse,
    effective_settings,
    failure,
    final,
    hide_shared_memory,
    run_directory,
)
from python_backends.watching.board import Board
from python_backends.watching.metrics import EXPORT_EVERY_S, Metrics
from python_backends.wires.control import ControlEnd
from python_backends.wires.records import RecordsEnd
from python_backends.wires.sessions import SchedulerEnd
from python_backends.wires.sparse_log import SparseLog

if TYPE_CHECKING:
    from python_backends.triton_models.tracing import StreamTraceSpans

log = logging.getLogger("gapless.scheduler")

REQUEST = reader(Request)
LOST_PART = "a part of the answer could not be sent"
# the detokenizer may have a window of the same request: no step of the ensemble may fail while another runs
CUT_OFF_AFTER_S = 1.0
LOOK_EVERY_S = 0.1  # at answers that are to be cut off


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        hide_shared_memory()
        everything = effective_settings()
        trace_url, settings = everything.server.trace_url, everything.streams
        num_processors = len(os.sched_getaffinity(0))
        if kind_of(everything).gives_way(everything):
            num_processors += 1  # the loop has one to itself
        self._blobs = Blobs()
        self._single_use = SingleUse()
        self._metrics = Metrics()
        router = Router(everything.cluster) if everything.cluster.most_instances > 1 else None
        self._table = StreamTable(
            settings, time.monotonic_ns, context_tokens, self._metrics, router, num_processors
        )
        table = self._table
        self._link = SchedulerEnd(run_directory(), settings.dead_after_s)
        self._instances = InstanceWatch(everything.cluster, Board.inherited(), router, table, self._metrics)
        self._loads = self._instances.loads
        self._orders = Orders(everything.cluster, table, self._instances, self._metrics)
        self._control = ControlEnd(run_directory(), self._link.wake)
        self._readers: dict[type, Callable[[Any], None]] = {
            Tokens: table.tokens,
            Started: table.started,
            Evicted: table.evicted,
            Feedback: table.feedback,
            Idle: table.idle,
            Failed: table.failed,
            HiddenStates: self._states_read,
            PromptLogProbs: table.prompt_log_probs,
            **self._instances.readers,
        }
        self._spans = _spans(trace_url)
        self._predictions = Predictions(
            self._metrics, everything.prediction.keep_prompts, asks=everything.encodes_texts
        )
        self._predictor = PredictorLink(self._blobs, self._link.wake) if everything.encodes_texts else None
        self._learned = Regressions(partial(directory_of, everything))
        if everything.predicts_lengths:
            self._learned.start()
        # else nothing is learned
        self._records = RecordsEnd(run_directory()) if everything.predicts_lengths else None
        self._shown = SchedulerMetrics(self._metrics, table, self._loads)
        self._router = router
        self._arrivals: SimpleQueue[tuple[Request, Any, list[bytes] | None]] = SimpleQueue()
        # answers whose last window could not be sent, and when each ends
        self._cut_off: deque[tuple[float, Outgoing]] = deque()
        self._news: deque[Any] = deque()  # from the instance and the detokenizer, not yet taken
        self._sparse_log = SparseLog(log)
        self._exported_s = time.monotonic()
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
                # made here, because the streams thread would stand still meanwhile
                keys = self._router.prefix_keys(message) if self._router is not None else None
                self._arrivals.put((message, sender, keys))
            except ForgedError as error:
                final(sender, failure(str(error), error.code))
        self._link.wake()

    def finalize(self) -> None:
        self._stopping = True
        self._link.wake()
        self._thread.join()
        self.life.end()
        self._learned.close()
        self._control.close()
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
        for number in self._instances.ended():
            self._news.extend(self._link.give_up(number))
        self._news.extend(self._link.receive(self._wait_s()))
        while self._news:  # one that raises takes none of the others along
            self._take(self._news.popleft())
        self._observe("orders could not be carried out", partial(self._orders.look, self._control))
        self._observe("the instances could not be looked after", self._instances.look)
        self._accept()
        self._observe("lengths could not be predicted", self._predict)
        for instance, messages in self._table.outbox().items():
            self._link.send(instance, messages)
        started_s = time.monotonic()
        self._end_cut_off(started_s)
        for outgoing in self._table.due():
            self._try_to_send(outgoing)
        self._observe("ended answers could not be recorded", self._log_ended)
        now_s = time.monotonic()
        self._table.delivery.spent(now_s - started_s, now_s)
        if now_s - self._exported_s >= EXPORT_EVERY_S:
            self._exported_s = now_s
            self._observe("metrics could not be gathered", self._shown.begin)
        if self._shown.is_under_way:
            self._observe("metrics could not be exported", self._shown.go_on)

    def _take(self, news: Any) -> None:
        """What is unknown is passed over: another version of the code may run on another host."""
        read, kind = self._readers.get(type(news)), type(news).__name__
        if read is None:
            self._sparse_log.warning(kind, "no part of the scheduler model takes a message %s", kind)
        else:
            read(news)

    def _wait_s(self) -> float:
        """How long nothing will be due if nothing comes in."""
        if self._news or self._shown.is_under_way:
            return 0.0
        wait_s = min(self._table.wait_s(), self._instances.wait_s(), self._orders.wait_s())
        return min(wait_s, LOOK_EVERY_S) if self._cut_off else wait_s

    def _observe(self, what: str, action: Callable[[], object]) -> None:
        """Does something that no stream depends on. A failure is logged, at most once a minute, and has no
        other effect.
        """
        try:
            action()
        except Exception:
            self._sparse_log.warning(what, "%s; streams go on", what, exc_info=True)

    def _accept(self) -> None:
        while not self._arrivals.empty():
            request, sender, keys = self._arrivals.get_nowait()
            refusal = self._table.accept(without_subject(request), sender, keys)
            if refusal:
                if self._spans is not None:
                    self._spans.forget(request.request_id)
                self._end(request.request_id, sender, failure(refusal, QUEUE_FULL), "its refusal")
            elif request.subject is not None:
                self._observe("lengths could not be predicted", partial(self._predict_by_tokens, request))

    def _predict_by_tokens(self, request: Request) -> None:
        buckets = token_counts.buckets_of(request.prompt, request.adapter.digest)
        most = request.sampling.max_tokens
        said = self._learned.read(buckets, len(request.prompt), most)
        expected = self._predictions.opened(request, buckets, said)
        if expected is not None:
            self._table.predicted(request.request_id, expected)

    def _predict(self) -> None:
        """Takes the predictor's answers and asks for lengths that can be used, without waiting for either."""
        if self._predictor is None:
            return
        if self._loads.is_contested or len(self._table) > self._loads.num_slots:
            self._predictions.ask_all(self._table.is_seated)
        for request_id, answer in self._predictor.take():
            if not self._predictions.answered(request_id, answer):
                self._predictor.complain("it answers what can't be a length")
            elif answer.version and answer.prediction and not self._predictions.is_known(request_id):
                self._table.predicted(request_id, answer.prediction)
        if self._predictor.is_free:
            self._predictor.ask(self._predictions.take_questions())

    def _states_read(self, states: HiddenStates) -> None:
        self._observe("lengths could not be predicted", partial(self._predict_by_states, states))

    def _predict_by_states(self, states: HiddenStates) -> None:
        places = zip(states.request_ids.tolist(), states.num_written.tolist(), strict=True)
        for (request_id, written), state in zip(places, states.by_row(), strict=True):
            stream = self._table.find(request_id)
            read = None if stream is None else self._predictions.read_state(request_id, written, state)
            if stream is None or read is None:
                continue
            most = stream.request.sampling.max_tokens
            found = self._learned.predict(read, states.layer, most, written)
            self._predictions.reached(request_id, found)
            if found.prediction is not None:
                self._table.predicted(request_id, found.prediction)

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
                self._cut_off.append((time.monotonic() + CUT_OFF_AFTER_S, outgoing))
            else:
                self._table.not_sent(outgoing, LOST_PART)

    def _end_cut_off(self, now_s: float) -> None:
        while self._cut_off and self._cut_off[0][0] <= now_s:
            _, outgoing = self._cut_off.popleft()
            self._end(outgoing.request_id, outgoing.sender, failure(LOST_PART), "its end")

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
            final(outgoing.sender, _failure_of(outgoing) if outgoing.error else None)

    def _end(self, request_id: int, sender: Any, response: Any, what: str) -> None:
        """Ends a request that is not in the table. If `what` can't be sent, no other stream notices."""
        try:
            final(sender, response)
        except Exception:
            log.exception("request %d: %s could not be sent", request_id, what)


def _spans(trace_url: str) -> StreamTraceSpans | None:
    if not trace_url:
        return None
    from python_backends.triton_models.tracing import StreamTraceSpans  # brings OpenTelemetry

    return StreamTraceSpans(trace_url)


def _failure_of(outgoing: Outgoing) -> Any:
    if outgoing.error.startswith(RAN_ALONE):
        return failure(outgoing.error, ENGINE_FAILED)
    return failure(outgoing.error, SHUTTING_DOWN if outgoing.error == SERVER_ENDS else FAILED)
