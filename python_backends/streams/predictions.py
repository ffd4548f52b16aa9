"""What was asked of the length predictor, what it said, and what came true. Pure; the scheduler model's streams thread calls it.

Nobody waits here: a question is put in a list that somebody else empties, an answer is taken when it comes, and what has ended goes to
the log without one. Answers that can't be (not a number, not ascending) count as none.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from python_backends.messages import AnswerRecord, LengthAnswer
from python_backends.metrics import Metrics
from python_backends.request import QUANTILE_LEVELS, Finish, LengthPrediction, Request, Sampling, Subject

NOTHING = LengthAnswer()
MAX_PENDING = 1024  # questions; the oldest are dropped, because their answers would come too late
MAX_ASKED = 64  # at once


class Predictions:
    def __init__(self, metrics: Metrics, keep_prompts: bool) -> None:
        self._metrics = metrics
        self._keep_prompts = keep_prompts
        self._open: dict[int, tuple[Subject, LengthAnswer]] = {}  # by request
        self._pending: dict[int, Subject] = {}  # in order of arrival

    def asked(self, request: Request) -> None:
        if request.subject is None:
            return
        self._open[request.request_id] = (request.subject, NOTHING)
        self._pending[request.request_id] = request.subject
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def take_questions(self) -> list[tuple[int, Subject]]:
        """The next ones that nobody has asked yet; those that have ended meanwhile are left out."""
        ids = list(self._pending)[:MAX_ASKED]
        return [(number, self._pending.pop(number)) for number in ids]

    def answered(self, request_id: int, answer: LengthAnswer) -> bool:
        """False if the answer makes no sense. One to a request that has ended is passed over."""
        known = self._open.get(request_id)
        if answer.prediction is not None and not is_sane(answer.prediction):
            return False
        if known is not None:
            self._open[request_id] = (known[0], answer)
            self._metrics.gauge("gapless_predictor_version", answer.version or self._metrics.gauges["gapless_predictor_version"])
            source = "none" if answer.prediction is None else "forest" if answer.version else "history"
            self._metrics.count("gapless_length_predictions_total", labels=(("source", source),))
        return True

    def ended(self, request: Request, num_output_tokens: int, finish: Finish) -> AnswerRecord | None:
        """What the log is to know of it; None if lengths are not predicted."""
        self._pending.pop(request.request_id, None)
        subject, answer = self._open.pop(request.request_id, (None, NOTHING))
        if subject is None:
            return None
        if answer.prediction is not None and finish == Finish.STOP:
            error = abs(answer.prediction.mean - num_output_tokens)
            self._metrics.observe("gapless_length_prediction_error_tokens", error)
        return AnswerRecord(
            at_s=time.time(),
            instruction=subject.instruction,
            num_prompt_tokens=len(request.prompt),
            num_input_tokens=subject.num_input_tokens,
            num_output_tokens=num_output_tokens,
            finish=finish,
            predicted=answer,
            user_input=subject.user_input if self._keep_prompts else "",
        )


def is_sane(prediction: LengthPrediction) -> bool:
    values = np.append(prediction.quantiles, prediction.mean)
    ascending = bool((np.diff(prediction.quantiles) >= 0).all())
    return len(prediction.quantiles) == len(QUANTILE_LEVELS) and bool(np.isfinite(values).all() and (values > 0).all()) and ascending


def within(prediction: LengthPrediction, sampling: Sampling) -> LengthPrediction:
    """As far as this request lets its answer go."""
    low, high = max(1, sampling.min_tokens), sampling.max_tokens
    return LengthPrediction(float(np.clip(prediction.mean, low, high)), np.clip(prediction.quantiles, low, high))


def without_subject(request: Request) -> Request:
    """As instances see it."""
    return replace(request, subject=None) if request.subject is not None else request
