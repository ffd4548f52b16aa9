"""The `detokenizer` model: token windows to text, and the only place that sees a client leave.

It remembers no text. A window without new text is answered with FINAL alone and costs the client nothing.
What it finds (a stop word, a client gone) goes to the scheduler model outside the ensemble, because the
ensemble has no way back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.linux.pauses import AwakeClock
from python_backends.nouns.messages import reader
from python_backends.nouns.request import LEAST_LOG_PROB, Feedback, Finish, Idle, Ids, LogProbs, TokenWindow
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.detokenize.detokenizer import (
    Detokenizer,
    Piece,
    cum_log_prob,
    new_log_probs,
    num_new_tokens,
)
from python_backends.triton_models.life import Life, watched
from python_backends.triton_models.tensors import (
    REFUSED,
    Blobs,
    ForgedError,
    effective_settings,
    failure,
    final,
    hide_shared_memory,
    run_directory,
)
from python_backends.wires.feedback import FeedbackEnd

if TYPE_CHECKING:
    from python_backends.watching.spans import TraceSpans

log = logging.getLogger("gapless.detokenizer")

WINDOW = reader(TokenWindow)
FORGET_AFTER_S = 120.0  # longer than between two windows of a stream that waits, however many do
BEAT_S = 0.25
IDLE_NS = 200_000_000
LATE_S = 0.4
# after a pause of the whole machine, in which windows may still come that were sent before it
SETTLED_S = 0.3
BUSY = 1 << 62
LARGE = 4096  # characters and tokens of a response
NOT_ANSWERED = "a part of the answer could not be turned into text or sent"
ASK_EVERY_S = 0.5  # is_cancelled() is a round trip: not for every window


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        hide_shared_memory()
        settings = effective_settings()
        self._detokenizer = Detokenizer(read_checkpoint(settings.model_directory))
        self._blobs = Blobs()
        self._spans = _spans(settings.server.trace_url)
        self._link = FeedbackEnd(run_directory())
        self._asked_s: dict[int, float] = {}  # when each stream's client was last asked after
        self._forgot_s = 0.0  # when streams that had ended were last forgotten
        self._ended_ns = 0  # the last execute; BUSY during one
        self._stopping = threading.Event()
        self._beat = threading.Thread(target=self._say_when_idle, name="idle beat")
        self._beat.start()
        self.life = Life("detokenizer")

    @watched
    def execute(self, requests: list[Any]) -> None:
        self._ended_ns = BUSY
        answer = self._try_to_answer if self._spans is None else self._traced
        try:
            for request in requests:  # one: they are not batched, see config.pbtxt
                feedback = answer(request)
                if feedback is not None:
                    self._link.send(
                        feedback, can_wait=not (feedback.stopped_at or feedback.gone or feedback.error)
                    )
        finally:
            self._ended_ns = time.monotonic_ns()

    def finalize(self) -> None:
        self.life.end()
        self._stopping.set()
        self._beat.join()
        self._link.close()
        if self._spans is not None:
            self._spans.close()

    def _say_when_idle(self) -> None:
        """Tells the scheduler model that no window is here: windows that were lost with an earlier process
        never come, so no feedback can name them. Also sends the feedback that was held.
        """
        clock, began_ns = AwakeClock(LATE_S), time.monotonic_ns()
        self._link.send(Idle(began_ns, began_ns))
        while not self._stopping.wait(BEAT_S):
            clock.advance()
            now_ns = time.monotonic_ns()
            is_idle = clock.since_pause_s > SETTLED_S and now_ns - self._ended_ns > IDLE_NS
            idle = [Idle(now_ns, began_ns)] if is_idle else []
            self._link.send(*idle)

    def _traced(self, request: Any) -> Feedback | None:
        assert self._spans is not None
        carried, start_ns = request.trace().get_context(), time.monotonic_ns()
        feedback = self._try_to_answer(request)
        self._spans.add("detokenize", carried, start_ns, time.monotonic_ns())
        return feedback

    def _try_to_answer(self, request: Any) -> Feedback | None:
        """None if the window is none of ours."""
        try:
            window = self._blobs.message(request, "token_window", WINDOW)
        except ForgedError as error:
            final(request.get_response_sender(), failure(str(error), REFUSED))
            return None
        sender = request.get_response_sender()
        try:
            return self._answer(sender, window, self._is_gone(request, window))
        except Exception:
            log.exception("request %d: a window could not be answered", window.request_id)
            self._end_without_answer(sender, window)
            return Feedback(window.request_id, window.start + len(window.tokens), error=NOT_ANSWERED)

    def _end_without_answer(self, sender: Any, window: TokenWindow) -> None:
        """With an error after the last window alone: before it the scheduler model still works on the
        request, and no step of the ensemble may fail while another one runs (docs/streams.md). There the
        feedback brings the error about.
        """
        error = failure(NOT_ANSWERED) if window.finish != Finish.RUNNING else None
        with contextlib.suppress(Exception):  # it is closed
            final(sender, error)

    def _answer(self, sender: Any, window: TokenWindow, gone: bool) -> Feedback:
        piece = self._detokenizer.piece(window)
        scores = new_log_probs(window, piece)
        answered = bool(piece.text) or window.emit or _tells_of_tokens(window, piece, scores)
        response = _response(window, piece, scores) if answered else None
        num_values = len(piece.text) + len(window.tokens) + _num_prompt_values(window)
        if response is not None and num_values > LARGE:
            # there may be no shared memory for it, and a final call would close the sender
            sender.send(response)
            response = None
        final(sender, response)
        return Feedback(
            window.request_id, window.start + len(window.tokens), piece.stopped_at, gone, answered
        )

    def _is_gone(self, request: Any, window: TokenWindow) -> bool:
        """Asked before FINAL is sent: afterwards it would bring the server down."""
        if window.finish != Finish.RUNNING:
            self._asked_s.pop(window.request_id, None)
            return False
        now_s = time.monotonic()
        if now_s - self._asked_s.setdefault(window.request_id, now_s) < ASK_EVERY_S:
            return False
        self._asked_s[window.request_id] = now_s
        self._forget(now_s)
        return bool(request.is_cancelled())

    def _forget(self, now_s: float) -> None:
        """Streams that ended without a last window, as those that failed, leave their entry behind."""
        if now_s - self._forgot_s >= FORGET_AFTER_S:
            self._forgot_s = now_s
            self._asked_s = {
                request: asked_s
                for request, asked_s in self._asked_s.items()
                if now_s - asked_s < FORGET_AFTER_S
            }


def _spans(trace_url: str) -> TraceSpans | None:
    if not trace_url:
        return None
    from python_backends.watching.spans import TraceSpans  # brings OpenTelemetry

    return TraceSpans(trace_url)


def _tells_of_tokens(window: TokenWindow, piece: Piece, scores: LogProbs | None) -> bool:
    """Whether there are new tokens whose count, ids or log-probabilities the
    client wants; their text may come later.
    """
    is_asked = window.wants_num_output_tokens or window.wants_output_ids
    counts = is_asked and not window.silent and num_new_tokens(window, piece) > 0
    return counts or window.prompt_log_probs is not None or (scores is not None and len(scores.chosen) > 0)


def _response(window: TokenWindow, piece: Piece, scores: LogProbs | None) -> Any:
    """The ensemble's outputs, in the shapes of TensorRT-LLM's: text_output [1], all others with a batch
    dimension.

    Only the last response has the finish reason; counts are only for those who asked. What is left out costs
    nothing.
    """
    outputs = [
        pb_utils.Tensor("text_output", np.array([piece.text.encode()], object)),
        pb_utils.Tensor("batch_index", np.zeros((1, 1), np.int32)),  # the row of the request, which has one
    ]
    finish = window.finish
    if piece.stopped_at and finish == Finish.LENGTH:
        finish = Finish.STOP
    if finish != Finish.RUNNING:
        outputs.append(pb_utils.Tensor("finish_reason", np.array([[finish.reason.encode()]], object)))
    if window.num_input_tokens >= 0:
        outputs.append(pb_utils.Tensor("num_input_tokens", np.array([[window.num_input_tokens]], np.int32)))
        outputs.append(pb_utils.Tensor("num_cached_tokens", np.array([[window.num_cached_tokens]], np.int32)))
    if window.wants_num_output_tokens:
        count = num_new_tokens(window, piece)
        outputs.append(pb_utils.Tensor("num_output_tokens", np.array([[count]], np.int32)))
    if scores is not None:
        outputs += _log_probs(window, piece, scores)
    elif window.wants_output_ids and (count := num_new_tokens(window, piece)):
        outputs.append(pb_utils.Tensor("output_ids", np.ascontiguousarray(_new_ids(window, count))))
    if window.prompt_ids is not None and window.prompt_log_probs is not None:
        outputs += _of_prompt(window.prompt_ids, window.prompt_log_probs)
    return pb_utils.InferenceResponse(outputs)


def _new_ids(window: TokenWindow, count: int) -> Ids:
    """Returns the first `count` of the tokens that are new: [1, 1, count]."""
    first = max(0, window.num_sent - window.start)
    return window.tokens[None, None, first : first + count]


def _log_probs(window: TokenWindow, piece: Piece, scores: LogProbs) -> list[Any]:
    """Of the tokens of this response, and the sum so far. An answer has one
    beam: the first dimension of each but the sum's.
    """
    count = len(scores.chosen)
    total = cum_log_prob(window, piece, scores)
    tensors: dict[str, Any] = {"cum_log_probs": np.array([total], np.float32)}
    if count:
        tensors["output_ids"] = _new_ids(window, count)[0]
        tensors["output_log_probs"] = scores.chosen[None]
    if count and scores.num_top:
        tensors["top_ids"] = scores.top_ids.reshape(count, -1)
        tensors["top_log_probs"] = scores.top.reshape(count, -1)
    return _told(tensors)


def _of_prompt(ids: Ids, scores: LogProbs) -> list[Any]:
    """Its tokens, and log-probabilities of all of them but the first."""
    count = len(scores.chosen)
    tensors: dict[str, Any] = {"prompt_ids": ids}
    if count:
        tensors["prompt_log_probs"] = scores.chosen
    if count and scores.num_top:
        tensors["prompt_top_ids"] = scores.top_ids.reshape(count, -1)
        tensors["prompt_top_log_probs"] = scores.top.reshape(count, -1)
    return _told(tensors)


def _num_prompt_values(window: TokenWindow) -> int:
    ids, scores = window.prompt_ids, window.prompt_log_probs
    return 0 if ids is None or scores is None else 2 * (len(ids) + len(scores.top))


def _told(tensors: dict[str, Any]) -> list[Any]:
    """With the batch dimension. Unknown log-probabilities of an engine are NaN, which JSON has no word for;
    ids stay as they are.
    """
    told = {
        name: np.nan_to_num(values, nan=LEAST_LOG_PROB, neginf=LEAST_LOG_PROB)
        for name, values in tensors.items()
    }
    return [pb_utils.Tensor(name, np.ascontiguousarray(values[None])) for name, values in told.items()]
