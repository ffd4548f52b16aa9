"""Predictions of lengths: asked without waiting, taken when they come, and
nothing happens when they don't, or are nonsense.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.instance.build import build
from python_backends.instance.loop import Instance
from python_backends.nouns.messages import AtStage, LengthAnswer, Predicted, Submit
from python_backends.nouns.request import Finish, LengthPrediction, Request, Sampling, Subject
from python_backends.nouns.stages import PROMPT_END, READ_EVERY, WRITTEN
from python_backends.nouns.step import Started, Tokens
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import (
    EngineSettings,
    ModelSettings,
    SchedulingSettings,
    Settings,
    StreamSettings,
)
from python_backends.streams.predictions import MAX_ASKED, MAX_PENDING, MEDIAN, Predictions, without_subject
from python_backends.streams.table import StreamTable
from python_backends.watching.metrics import Metrics
from tests.support.clock import Clock
from tests.support.toy_engine import TOY

SUBJECT = Subject("Say it", "hello", 1, 12)


def prediction(*values: float) -> LengthPrediction:
    """Mean, then quantiles."""
    return LengthPrediction(values[0], np.array(values[1:], np.float32))


GOOD = prediction(5, 1, 2, 5, 6, 9, 12)


def same(one: LengthPrediction | None, other: LengthPrediction) -> bool:
    return one is not None and one.mean == other.mean and one.quantiles.tolist() == other.quantiles.tolist()


def request(number: int, max_tokens: int = 12, min_tokens: int = 0) -> Request:
    prompt = np.arange(number % 7 + 3, dtype=np.int32)
    return Request(
        number,
        prompt,
        Sampling(max_tokens, min_tokens),
        stream=True,
        arrival_ns=time.monotonic_ns(),
        subject=SUBJECT,
    )


def predictions(keep_prompts: bool = False) -> Predictions:
    return Predictions(Metrics(), keep_prompts, sample_every_s=0.0)


# --- what is asked, what comes back, what is logged


def test_questions_are_asked_once_and_together() -> None:
    books = predictions()
    for number in range(MAX_ASKED + 3):
        books.opened(request(number))
    assert [number for number, _ in books.take_questions()] == list(range(MAX_ASKED))
    assert [number for number, _ in books.take_questions()] == list(range(MAX_ASKED, MAX_ASKED + 3))
    assert books.take_questions() == []


def test_questions_that_nobody_takes_are_bounded() -> None:
    books = predictions()
    for number in range(2 * MAX_PENDING):
        books.opened(request(number))
    assert books.take_questions()[0][0] == MAX_PENDING


# --- only when somebody can use it


def nobody(number: int) -> bool:
    return False


def test_while_nobody_competes_one_request_in_a_while_is_asked_for_and_all_are_logged() -> None:
    clock = Clock()
    books = Predictions(Metrics(), keep_prompts=False, sample_every_s=5.0, clock=clock)
    for number in range(12):
        books.opened(request(number))
        for asked, _ in books.take_questions():
            books.answered(asked, LengthAnswer(GOOD, 1, np.ones(21, np.float32), "packaged"))
        books.ended(request(number), 7, Finish.STOP)
        clock.now_s += 1.0
    records = books.take_records()
    assert len(records) == 12
    assert [n for n, each in enumerate(records) if each.predicted.features is not None] == [0, 5, 10]
    assert is_empty(books)


def is_empty(books: Predictions) -> bool:
    kept = (
        books._unasked,
        books._open,
        books._stages,
        books._states,
        books._pending,
        books._ended,
        books._had_begun,
    )
    return not any((*kept, books._read))


def test_when_they_compete_all_are_asked_for_at_once_and_those_that_wait_first() -> None:
    books = Predictions(Metrics(), keep_prompts=False, sample_every_s=5.0, clock=Clock())
    for number in range(5):
        books.opened(request(number))
    assert [number for number, _ in books.take_questions()] == [0]
    books.ask_all(lambda number: number < 3)
    assert [number for number, _ in books.take_questions()] == [3, 4, 1, 2]
    books.ask_all(nobody)
    assert books.take_questions() == []


def at_stage(prediction: LengthPrediction | None = None, stage: int = PROMPT_END) -> AtStage:
    return AtStage(stage, np.ones(4, np.float32), 18, prediction, 5 if prediction else 0)


def test_every_request_whose_prompt_was_computed_is_logged_with_its_state() -> None:
    """Whether it was asked for, had begun when it was, or nobody asked."""
    books = Predictions(Metrics(), keep_prompts=False, sample_every_s=5.0, clock=Clock())
    for number in range(3):
        books.opened(request(number))
    books.answered(0, LengthAnswer(GOOD, 1))
    books.ask_all(lambda number: number == 1)
    books.answered(1, LengthAnswer(GOOD, 1))
    books.opened(request(3))
    for number in range(4):
        books.reached(number, at_stage(GOOD if number == 3 else None))
        books.ended(request(number), 7, Finish.STOP)
    records = books.take_records()
    assert [each.predicted.prediction is not None for each in records] == [True, False, False]
    books.answered(2, LengthAnswer(GOOD, 1))
    records += books.take_records()
    assert [bool(each.stages) for each in records] == [True] * 4
    errors = books._metrics.histograms["gapless_length_error_at_prompt_end_tokens"]
    assert (sum(errors.counts), errors.sum) == (1, 2)
    books.take_questions()
    assert is_empty(books)


def test_a_length_that_its_state_tells_is_not_asked_for() -> None:
    books = Predictions(Metrics(), keep_prompts=False, sample_every_s=5.0, clock=Clock())
    for number in range(4):
        books.opened(request(number))
    books.take_questions()
    books.reached(1, at_stage(GOOD))
    books.reached(2, at_stage())
    assert [books.is_known(number) for number in range(4)] == [False, True, False, False]
    books.ask_all(nobody)
    assert [number for number, _ in books.take_questions()] == [2, 3]
    books.ended(request(1), 7, Finish.STOP)
    assert [bool(each.stages) for each in books.take_records()] == [True]


def test_a_state_of_a_request_that_is_not_open_is_ignored() -> None:
    books = predictions()
    assert books.read_state(7, PROMPT_END, np.ones(4, np.float32)) is None
    assert is_empty(books)


def test_every_stage_that_an_answer_reaches_is_logged_with_the_mean_of_its_states() -> None:
    books, told = predictions(), []
    books.opened(request(1))
    for written in range(0, WRITTEN[1] + 1, READ_EVERY):
        found = books.read_state(1, written, np.array([written], np.float32))
        if found is not None:
            told.append((written, found.item()))
            books.reached(1, at_stage(GOOD, written))
    middle = READ_EVERY / 2
    assert told == [(0, 0), *((stage, stage / 2 + middle) for stage in WRITTEN[:2])]
    books.ended(request(1), 300, Finish.STOP)
    books.answered(1, LengthAnswer())
    (record,) = books.take_records()
    assert [each.stage for each in record.stages] == [PROMPT_END, *WRITTEN[:2]]
    errors = books._metrics.histograms["gapless_length_error_while_written_tokens"]
    assert (sum(errors.counts), errors.sum) == (2, 2 * (300 - GOOD.quantiles[MEDIAN]))
    counters = books._metrics.counters
    assert counters["gapless_length_predictions_total", (("source", "written"),)] == 2
    books.take_questions()
    assert is_empty(books)


def test_what_had_begun_before_it_was_asked_for_teaches_nothing() -> None:
    """Of those that run at any time more are long than of those that come: learned from them, lengths and
    errors would be too large.
    """
    books = Predictions(Metrics(), keep_prompts=False, sample_every_s=5.0, clock=Clock())
    for number in range(4):
        books.opened(request(number))
    books.take_questions()
    books.ask_all(lambda number: number < 3)
    for asked, _ in books.take_questions()[:2]:
        assert books.answered(asked, LengthAnswer(GOOD, 1))
    for number in (1, 2, 3):
        books.ended(request(number), 7, Finish.STOP)
    assert [each.predicted.version for each in books.take_records()] == [0, 0, 1]
    assert sum(books._metrics.histograms["gapless_length_prediction_error_tokens"].counts) == 1


def test_a_crowd_that_runs_pushes_out_nobody_who_waits() -> None:
    books = Predictions(Metrics(), keep_prompts=False, sample_every_s=1e9, clock=Clock())
    for number in range(2 * MAX_PENDING):
        books.opened(request(number))
    books.take_questions()
    books.ask_all(lambda number: number < 2 * MAX_PENDING - 10)
    assert [number for number, _ in books.take_questions()][:10] == list(
        range(2 * MAX_PENDING - 10, 2 * MAX_PENDING)
    )


def test_the_record_of_an_answer_has_what_was_predicted_and_no_text() -> None:
    books = predictions()
    books.opened(request(1))
    assert books.answered(1, LengthAnswer(GOOD, 3, np.ones(21, np.float32), "packaged"))
    books.ended(request(1), 7, Finish.STOP)
    (record,) = books.take_records()
    assert same(record.predicted.prediction, GOOD)
    assert (record.num_output_tokens, record.num_input_tokens, record.finish, record.user_input) == (
        7,
        1,
        Finish.STOP,
        "",
    )
    metrics = books._metrics
    assert metrics.gauges["gapless_predictor_version", ()] == 3
    assert metrics.histograms["gapless_length_prediction_error_tokens"].sum == 2
    assert metrics.counters["gapless_length_predictions_total", (("source", "forest"),)] == 1
    assert books.take_records() == []


def test_an_answer_that_was_cut_is_logged_and_is_no_error() -> None:
    books = predictions(keep_prompts=True)
    books.opened(request(1))
    books.answered(1, LengthAnswer(GOOD, 0))
    books.ended(request(1), 12, Finish.LENGTH)
    assert books.take_records()[0].user_input == "hello"
    assert sum(books._metrics.histograms["gapless_length_prediction_error_tokens"].counts) == 0


def test_short_answers_that_end_before_their_prediction_are_learned_from_too() -> None:
    """Logged without features, they would be missing in the forest,
    which would take all answers to be long.
    """
    books = predictions()
    books.opened(request(1))
    books.ended(request(1), 2, Finish.STOP)
    assert books.take_records() == []
    assert [number for number, _ in books.take_questions()] == [1]
    books.answered(1, LengthAnswer(GOOD, 3, np.ones(21, np.float32), "packaged"))
    (record,) = books.take_records()
    assert record.num_output_tokens == 2
    assert record.predicted.features is not None


def test_what_is_never_answered_is_logged_without_a_prediction() -> None:
    books = predictions()
    for number in range(2 * MAX_PENDING + 5):
        books.opened(request(number))
        books.ended(request(number), 7, Finish.STOP)
    records = books.take_records()
    assert len(records) == MAX_PENDING + 5
    assert all(record.predicted.version == 0 for record in records), "recent answers say it"
    books.ended(request(0), 7, Finish.STOP)
    assert books.take_records() == []


@pytest.mark.parametrize(
    "nonsense",
    [
        prediction(float("nan"), 1, 2, 3, 4, 5, 6),
        prediction(5, 1, 2, float("nan"), 4, 5, 6),
        prediction(5, 1, 2, 3, 4, 5, float("inf")),
        prediction(5, 3, 2, 3, 4, 5, 6),
        prediction(-1, 1, 2, 3, 4, 5, 6),
        prediction(5, 0, 0, 0, 0, 0, 0),
        prediction(5, 1, 2),
    ],
)
def test_what_can_be_no_length_is_not_taken(nonsense: LengthPrediction) -> None:
    books = predictions()
    books.opened(request(1))
    assert not nonsense.is_sane
    assert not books.answered(1, LengthAnswer(nonsense, 1))
    books.ended(request(1), 7, Finish.STOP)
    assert books.take_records()[0].predicted.prediction is None


# --- from the tokens of the prompt, and before they are learned from


def without_encoder() -> Predictions:
    return Predictions(Metrics(), keep_prompts=False, sample_every_s=0.0, asks=False)


BUCKETS = np.array([3, 3, 70], np.int32)


def test_every_request_is_predicted_from_its_tokens_and_nothing_is_asked() -> None:
    books = without_encoder()
    assert same(books.opened(request(1), BUCKETS, LengthAnswer(GOOD, 4)), GOOD)
    books.ask_all(nobody)
    assert books.take_questions() == []
    books.reached(1, at_stage(GOOD))
    assert books.is_known(1)
    books.ended(request(1), 7, Finish.STOP)
    (record,) = books.take_records()
    assert same(record.predicted.prediction, GOOD)
    assert record.predicted.version == 4
    assert record.token_buckets is BUCKETS
    assert len(record.stages) == 1
    counters = books._metrics.counters
    assert counters["gapless_length_predictions_total", (("source", "text"),)] == 1
    assert books._metrics.histograms["gapless_length_prediction_error_tokens"].sum == 2
    assert is_empty(books)


def test_before_anything_is_learned_recent_answers_say_the_length() -> None:
    books, said = without_encoder(), []
    for number in range(7):
        said.append(books.opened(request(number), BUCKETS))
        books.ended(request(number), 7 if number else 0, Finish.STOP if number else Finish.CANCELLED)
    assert said[:6] == [None] * 6, "the first answer had no tokens, and five are needed"
    assert said[6] is not None
    assert said[6].mean == pytest.approx(7)
    counters = books._metrics.counters
    assert counters["gapless_length_predictions_total", (("source", "history"),)] == 1
    assert counters["gapless_length_predictions_total", (("source", "none"),)] == 6


def test_recent_answers_with_an_adapter_and_without_it_are_apart() -> None:
    books = without_encoder()
    tuned = SUBJECT.changed(adapter="0a1b")
    for number in range(1, 13):
        asked = request(number).changed(subject=tuned if number % 2 else SUBJECT)
        books.opened(asked, BUCKETS)
        books.ended(asked, 11 if number % 2 else 3, Finish.STOP)
    for subject, expected in ((tuned, 11), (SUBJECT, 3)):
        said = books.opened(request(20 + expected).changed(subject=subject), BUCKETS)
        assert said is not None
        assert said.mean == pytest.approx(expected)
    assert {each.adapter for each in books.take_records()} == {"", "0a1b"}


def test_what_the_forest_says_replaces_what_the_tokens_say_and_its_features_are_kept_anyway() -> None:
    books, features = predictions(), np.ones(21, np.float32)
    other = prediction(8, 1, 2, 8, 9, 10, 12)
    for number in (1, 2):
        books.opened(request(number), BUCKETS, LengthAnswer(GOOD, 4))
    books.answered(1, LengthAnswer(other, 9, features, "packaged"))
    books.answered(2, LengthAnswer(other, 0, features, "packaged"))
    for number in (1, 2):
        books.ended(request(number), 7, Finish.STOP)
    first, second = (record.predicted for record in books.take_records())
    assert same(first.prediction, other)
    assert same(second.prediction, GOOD), "recent answers alone know less"
    assert (first.version, second.version) == (9, 4)
    assert first.features is second.features is features


LONG = prediction(900, 1, 200, 900, 1000, 2000, 4000)


def test_what_is_judged_and_logged_is_what_the_request_allows() -> None:
    books = without_encoder()
    said = books.opened(request(1, min_tokens=3), BUCKETS, LengthAnswer(LONG, 4))
    assert same(said, prediction(12, 3, 12, 12, 12, 12, 12))
    books.read_state(1, PROMPT_END, np.ones(4, np.float32))
    books.reached(1, at_stage(LONG))
    books.ended(request(1, min_tokens=3), 10, Finish.STOP)
    errors = (
        books._metrics.histograms[name].sum
        for name in ("gapless_length_prediction_error_tokens", "gapless_length_error_at_prompt_end_tokens")
    )
    assert list(errors) == [2, 2]
    (record,) = books.take_records()
    assert same(record.predicted.prediction, said)
    assert same(record.stages[0].prediction, said)


@pytest.mark.parametrize("is_late", [False, True])
def test_what_the_forest_says_is_cut_to_what_the_request_allows_too(is_late: bool) -> None:
    books, answer = predictions(), LengthAnswer(LONG, 9, np.ones(21, np.float32), "packaged")
    books.opened(request(1))
    books.take_questions()
    if not is_late:
        books.answered(1, answer)
    books.ended(request(1), 10, Finish.STOP)
    if is_late:
        books.answered(1, answer)
    (record,) = books.take_records()
    assert record.predicted.prediction.mean == 12


@pytest.mark.parametrize(
    ("min_tokens", "num_output", "finish", "is_kept"),
    [
        (400, 400, Finish.LENGTH, False),  # as `ignore_eos` asks
        (400, 150, Finish.CANCELLED, False),
        (300, 301, Finish.STOP, False),  # it would have ended before
        (300, 360, Finish.STOP, True),
        (300, 400, Finish.LENGTH, True),  # it might have ended before
        (1, 2, Finish.STOP, True),
        (0, 1, Finish.STOP, True),
    ],
)
def test_a_length_that_min_tokens_decided_is_not_learned_from(
    min_tokens: int, num_output: int, finish: Finish, is_kept: bool
) -> None:
    books = predictions()
    for number in range(5):
        asked = request(number, max_tokens=400, min_tokens=min_tokens)
        books.opened(asked)
        books.ended(asked, num_output, finish)
    for number, _ in books.take_questions():
        books.answered(number, LengthAnswer())
    assert len(books.take_records()) == (5 if is_kept else 0)
    assert (books.opened(request(7)) is not None) == is_kept
    books.ended(request(7), 7, Finish.STOP)
    books.answered(7, LengthAnswer())
    books.take_questions()
    books.take_records()
    assert is_empty(books)


# --- through the table to the instance


def table() -> StreamTable:
    made = StreamTable(StreamSettings(), time.monotonic_ns, lambda words: 4, Metrics())
    made.instance_ready(0)
    return made


def test_a_prediction_goes_to_the_instance_within_the_requests_own_limits() -> None:
    streams = table()
    streams.accept(request(1, max_tokens=8, min_tokens=2), None)
    assert [type(message) for message in streams.outbox().get(0, [])] == [Submit]
    streams.predicted(1, GOOD)
    assert streams.wait_s() == 0
    (told,) = streams.outbox().get(0, [])
    assert isinstance(told, Predicted)
    assert told.prediction.quantiles.tolist() == [2, 2, 5, 6, 8, 8]
    assert streams.outbox().get(0, []) == []


def test_a_prediction_that_comes_first_goes_behind_its_request_and_again_after_a_crash() -> None:
    streams = StreamTable(StreamSettings(), time.monotonic_ns, lambda words: 4, Metrics())
    streams.accept(request(1), None)
    streams.predicted(1, GOOD)
    assert streams.outbox().get(0, []) == []
    for _ in range(2):
        streams.instance_ready(0)
        assert [type(message) for message in streams.outbox().get(0, [])] == [Submit, Predicted]
        streams.instance_lost(0)


def test_a_prediction_for_somebody_who_has_left_is_passed_over() -> None:
    streams = table()
    streams.predicted(1, GOOD)
    assert streams.outbox().get(0, []) == []


def test_instances_never_see_what_a_request_is_about() -> None:
    assert without_subject(request(1)).subject is None


# --- nobody waits: the whole way, turn by turn, over the toy engine


class House:
    """Stream table and instance, a turn of each after the other; `predictor` says what comes back of a
    question, turns later. Each turn and each step takes a millisecond, however busy the machine is.
    """

    def __init__(
        self, directory: Path, predictor: Callable[[int, int], LengthAnswer | None] | None, policy: str
    ) -> None:
        settings = Settings(
            ModelSettings(directory=str(directory)),
            EngineSettings(kind=TOY, slots=2, options="step_ms=1"),
            scheduling=SchedulingSettings(policy=policy),
        )
        self.now_s = 0.0
        _, engine = build(settings)
        self.scheduler = SlotScheduler(
            engine.limits, settings.engine.token_budget, settings.scheduling, clock=lambda: self.now_s
        )
        self.inbox: list[Any] = []
        self.published: list[Any] = []
        self.instance = Instance(self.scheduler, engine, self, lambda _: None, steps_ahead=1)
        self.table, self.books, self.predictor = table(), predictions(), predictor
        self.out: list[tuple[int, int, LengthAnswer]] = []  # turn, request, answer
        self.history: list[tuple[int, int, int]] = []  # turn, request, token

    def receive(self, timeout_s: float) -> list[Any]:
        news, self.inbox = self.inbox, []
        return news

    def publish(self, messages: Sequence[Any]) -> None:
        self.published += messages

    def turn(self, number: int) -> None:
        self.now_s = number / 1000
        if number % 2 == 0 and number < 20:
            self.table.accept(without_subject(request(number)), None)
            self.books.opened(request(number))
        if self.predictor is not None:
            self.hear(number, self.predictor)
        self.inbox += self.table.outbox().get(0, [])
        self.instance.turn()
        news, self.published = self.published, []
        for message in news:
            self.take(number, message)

    def hear(self, number: int, predictor: Callable[[int, int], LengthAnswer | None]) -> None:
        for asked, _ in self.books.take_questions():
            answer = predictor(number, asked)
            if answer is not None:
                self.out.append((number + 1, asked, answer))
        for due, asked, answer in self.out:
            if due == number and self.books.answered(asked, answer) and answer.prediction is not None:
                self.table.predicted(asked, answer.prediction)

    def take(self, number: int, message: Any) -> None:
        if isinstance(message, Started):
            self.table.started(message)
        elif isinstance(message, Tokens):
            self.table.tokens(message)
            self.history += [
                (number, int(i), int(t)) for i, t in zip(message.request_ids, message.tokens, strict=True)
            ]


def answers(
    directory: Path, predictor: Callable[[int, int], LengthAnswer | None] | None, policy: str = "ours"
) -> list[tuple[int, int, int]]:
    house = House(directory, predictor, policy)
    for number in range(200):
        house.turn(number)
    assert {asked for _, asked, _ in house.history} == set(range(0, 20, 2))
    return house.history


def silent(turn: int, asked: int) -> LengthAnswer | None:
    return None  # no answer comes


@pytest.mark.parametrize(
    "predictor",
    [
        silent,
        lambda turn, asked: LengthAnswer(),
        lambda turn, asked: LengthAnswer(prediction(float("nan"), *[1] * 6), 1),
    ],
    ids=["no answer", "knows nothing", "not a number"],
)
def test_a_prediction_that_says_nothing_changes_no_turn_of_any_token(
    predictor: Callable[[int, int], LengthAnswer | None], tmp_path: Path
) -> None:
    """Two slots and ten requests, so that most wait."""
    from tests.support.server.toy_model import write_toy_model

    model = write_toy_model(tmp_path / "toy")
    assert answers(model, predictor) == answers(model, None)


def test_where_requests_are_served_in_order_of_arrival_predictions_change_no_turn_of_any_token(
    tmp_path: Path,
) -> None:
    from tests.support.server.toy_model import write_toy_model

    model = write_toy_model(tmp_path / "toy")
    assert answers(model, lambda turn, asked: LengthAnswer(GOOD, 1), "fcfs") == answers(model, None, "fcfs")
