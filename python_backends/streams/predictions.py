"""What was predicted of lengths, and what came true. Pure; the scheduler model's streams thread calls it.

Every request is predicted when it comes: from the tokens of its prompt, or from recent answers before
anything is learned; and again from hidden states, where the engine gives them: at the end of its prompt, and
at the stages that its answer reaches.

Where an encoder is named, the length predictor is asked as well, when its answer can be used: while requests
compete for slots or memory (`ask_all`). Otherwise one request every SAMPLE_EVERY_S is asked for, whichever
comes next, so that there is something to learn from. A length that is known from a state is not asked for any
more.

No call blocks here: a question is put in a list that the caller empties, and an answer is taken when it
comes. Only the log waits: an answer that has ended before its prediction came is logged when that comes.
Short answers are the first to end; logged without features, they would be missing in what is learned. For the
same reason answers that had begun before they were asked for teach nothing: of those that run at any time
more are long. Nor does an answer whose length `min_tokens` decided. Predictions that can't be (not a number,
not ascending) count as none; all others are cut to what their request allows before they are used, logged or
judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from python_backends.nouns.messages import AnswerRecord, AtStage, LengthAnswer
from python_backends.nouns.request import (
    QUANTILE_LEVELS,
    Finish,
    Floats,
    Ids,
    LengthPrediction,
    Request,
    Sampling,
    Subject,
)
from python_backends.nouns.stages import PROMPT_END
from python_backends.prediction.history import Answered, RecentAnswers
from python_backends.prediction.read_states import ReadStates
from python_backends.prediction.request_log import CUT_SHORT, instruction_id
from python_backends.watching.metrics import Metrics

Said = TypeVar("Said", LengthAnswer, AtStage)

NOTHING = LengthAnswer()
AT_PROMPT_END = "gapless_length_error_at_prompt_end_tokens"
WHILE_WRITTEN = "gapless_length_error_while_written_tokens"
MEDIAN = QUANTILE_LEVELS.index(0.5)
MAX_PENDING = 1024  # questions, and ended answers whose prediction is missing; the oldest go
MAX_ASKED = 64  # at once
# of min_tokens: an answer that ends so shortly after it would have ended before
SHORTLY = 0.1
SAMPLE_EVERY_S = 5.0  # while none competes: the 100 answers that a forest needs in eight minutes


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """A request as it came."""

    subject: Subject
    sampling: Sampling
    buckets: Ids | None  # of its prompt's tokens
    said: LengthAnswer  # what was expected of it


class Predictions:
    def __init__(
        self,
        metrics: Metrics,
        keep_prompts: bool,
        sample_every_s: float = SAMPLE_EVERY_S,
        asks: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`asks`: there is a length predictor with an encoder."""
        self._metrics = metrics
        self._keep_prompts = keep_prompts
        self._sample_every_s = sample_every_s
        self._clock = clock
        self._sampled_s = clock() - sample_every_s
        self._asks = asks
        self._recent = RecentAnswers()
        self._read: dict[int, _Read] = {}  # open
        self._unasked: dict[int, Subject] = {}  # open, and not wanted yet; in order of arrival
        # to be known, by request; None: not answered yet
        self._open: dict[int, tuple[Subject, LengthAnswer | None]] = {}
        self._had_begun: set[int] = set()  # of these, when they were asked for
        self._states: dict[int, ReadStates] = {}  # open, and states of them have been read
        self._stages: dict[int, dict[int, AtStage]] = {}  # of these: by stage that they have reached
        self._pending: dict[int, Subject] = {}  # of these, not asked yet, in order
        # without their prediction, in order of their end
        self._ended: dict[int, tuple[AnswerRecord, Sampling]] = {}
        self._records: list[AnswerRecord] = []

    def opened(
        self, request: Request, buckets: Ids | None = None, said: LengthAnswer = NOTHING
    ) -> LengthPrediction | None:
        """A request has come; `said`: by the regression on the `buckets` of its tokens. Returns what is
        expected of it. The length predictor is asked if a sample for learning is due.
        """
        subject = request.subject
        if subject is None:
            return None
        if said.prediction is None:
            number = instruction_id(subject.instruction, subject.adapter)
            most = request.sampling.max_tokens
            said = LengthAnswer(self._recent.predict(number, subject.num_input_tokens, most))
        said = _cut(said, request.sampling)
        self._read[request.request_id] = _Read(subject, request.sampling, buckets, said)
        self._count(said, "text" if said.version else "history")
        if self._asks:
            self._opened_for_sample(request.request_id, subject)
        return said.prediction

    def _opened_for_sample(self, request_id: int, subject: Subject) -> None:
        self._unasked[request_id] = subject
        now_s = self._clock()
        if now_s - self._sampled_s >= self._sample_every_s:
            self._sampled_s = now_s
            self._ask(request_id, self._unasked.pop(request_id))

    def read_state(self, request_id: int, num_written: int, state: Floats) -> Floats | None:
        """The hidden `state` [hidden] of a request was read, after so many tokens of its answer. Returns what
        this stage is predicted from [hidden]; None: it is no stage.
        """
        if request_id not in self._read:
            return None
        return self._states.setdefault(request_id, ReadStates()).add(num_written, state)

    def reached(self, request_id: int, at_stage: AtStage) -> None:
        """A request has come to this stage."""
        read = self._read.get(request_id)
        if read is None:
            return
        at_stage = _cut(at_stage, read.sampling)
        self._stages.setdefault(request_id, {})[at_stage.stage] = at_stage
        if at_stage.prediction is not None:
            source = "state" if at_stage.stage == PROMPT_END else "written"
            self._metrics.count("gapless_length_predictions_total", labels=(("source", source),))

    def is_known(self, request_id: int) -> bool:
        """Whether its length was predicted from its hidden state."""
        return any(each.prediction is not None for each in self._stages.get(request_id, {}).values())

    def ask_all(self, has_begun: Callable[[int], bool]) -> None:
        """The length of every open request is wanted: first of those that have not
        begun, then of the others, up to MAX_PENDING.
        """
        unasked = {each: subject for each, subject in self._unasked.items() if not self.is_known(each)}
        self._unasked = {each: subject for each, subject in self._unasked.items() if each not in unasked}
        for request_id in sorted(unasked, key=has_begun):
            if has_begun(request_id):
                if len(self._pending) == MAX_PENDING:
                    break
                self._had_begun.add(request_id)
            self._ask(request_id, unasked[request_id])

    def _ask(self, request_id: int, subject: Subject) -> None:
        self._open[request_id] = (subject, None)
        self._pending[request_id] = subject
        if len(self._pending) > MAX_PENDING:
            dropped = next(iter(self._pending))
            del self._pending[dropped]
            self.answered(dropped, NOTHING)

    def take_questions(self) -> list[tuple[int, Subject]]:
        """The next ones that have not been asked."""
        ids = list(self._pending)[:MAX_ASKED]
        return [(number, self._pending.pop(number)) for number in ids]

    def answered(self, request_id: int, answer: LengthAnswer) -> bool:
        """Returns False if the answer makes no sense; it is then ignored."""
        makes_sense = answer.prediction is None or answer.prediction.is_sane
        answer = answer if makes_sense else NOTHING
        if request_id in self._ended:
            record, sampling = self._ended.pop(request_id)
            self._records.append(record.changed(predicted=_joined(_cut(answer, sampling), record.predicted)))
        elif request_id in self._open:
            answer = _cut(answer, self._read[request_id].sampling)
            self._open[request_id] = (self._open[request_id][0], answer)
            if answer.version:
                self._count(answer, "forest")
        return makes_sense

    def ended(self, request: Request, num_output_tokens: int, finish: Finish) -> None:
        self._states.pop(request.request_id, None)
        stages = tuple(self._stages.pop(request.request_id, {}).values())
        self._unasked.pop(request.request_id, None)
        _, answer = self._open.pop(request.request_id, (None, NOTHING))
        if request.request_id in self._had_begun:
            self._had_begun.discard(request.request_id)
            self._pending.pop(request.request_id, None)
            answer = NOTHING
        read = self._read.pop(request.request_id, None)
        if read is None:
            return
        self._observe_stages(stages, num_output_tokens, finish)
        said = _joined(answer or NOTHING, read.said)
        self._observe(said, num_output_tokens, finish)
        if num_output_tokens <= read.sampling.min_tokens * (1 + SHORTLY):
            self._pending.pop(request.request_id, None)
            return
        record = self._record(request, read, num_output_tokens, finish, stages)
        self._add_to_recent(read.subject, num_output_tokens, finish)
        if answer is not None:
            self._records.append(record.changed(predicted=said))
            return
        self._ended[request.request_id] = record, read.sampling
        if len(self._ended) > MAX_PENDING:
            self._records.append(self._ended.pop(next(iter(self._ended)))[0])

    def take_records(self) -> list[AnswerRecord]:
        """Records that are ready for the log."""
        records, self._records = self._records, []
        return records

    def _record(
        self,
        request: Request,
        read: _Read,
        num_output_tokens: int,
        finish: Finish,
        stages: tuple[AtStage, ...],
    ) -> AnswerRecord:
        return AnswerRecord(
            at_s=time.time(),
            instruction=read.subject.instruction,
            num_prompt_tokens=len(request.prompt),
            num_input_tokens=read.subject.num_input_tokens,
            num_output_tokens=num_output_tokens,
            finish=finish,
            predicted=read.said,
            user_input=read.subject.user_input if self._keep_prompts else "",
            stages=stages,
            token_buckets=read.buckets,
            adapter=read.subject.adapter,
        )

    def _add_to_recent(self, subject: Subject, num_output_tokens: int, finish: Finish) -> None:
        if finish == Finish.STOP or (finish in CUT_SHORT and num_output_tokens > 0):
            number = instruction_id(subject.instruction, subject.adapter)
            self._recent.add(
                Answered(number, subject.num_input_tokens, num_output_tokens, finish == Finish.STOP)
            )

    def _count(self, answer: LengthAnswer, source: str) -> None:
        if answer.version:
            self._metrics.gauge("gapless_predictor_version", answer.version)
        source = "none" if answer.prediction is None else source
        self._metrics.count("gapless_length_predictions_total", labels=(("source", source),))

    def _observe_stages(self, stages: tuple[AtStage, ...], num_output_tokens: int, finish: Finish) -> None:
        for each in stages:
            if each.prediction is not None and finish == Finish.STOP:
                error = abs(float(each.prediction.quantiles[MEDIAN]) - num_output_tokens)
                self._metrics.observe(AT_PROMPT_END if each.stage == PROMPT_END else WHILE_WRITTEN, error)

    def _observe(self, answer: LengthAnswer, num_output_tokens: int, finish: Finish) -> None:
        if answer.prediction is not None and finish == Finish.STOP:
            error = abs(answer.prediction.mean - num_output_tokens)
            self._metrics.observe("gapless_length_prediction_error_tokens", error)


def _joined(answer: LengthAnswer, read: LengthAnswer) -> LengthAnswer:
    """`answer` of the length predictor if its forest says something; else what was `read`, with its
    features.
    """
    if answer.version or read.prediction is None:
        return answer
    return answer.changed(prediction=read.prediction, version=read.version)


def _cut(said: Said, sampling: Sampling) -> Said:
    return said if said.prediction is None else said.changed(prediction=within(said.prediction, sampling))


def within(prediction: LengthPrediction, sampling: Sampling) -> LengthPrediction:
    """Limited to the lengths that this request allows."""
    low, high = max(1, sampling.min_tokens), sampling.max_tokens
    return LengthPrediction(
        float(np.clip(prediction.mean, low, high)), np.clip(prediction.quantiles, low, high)
    )


def without_subject(request: Request) -> Request:
    """As instances see it."""
    return request.changed(subject=None) if request.subject is not None else request
