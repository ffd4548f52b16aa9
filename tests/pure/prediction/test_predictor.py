"""The predictor: within its budget, and with what it has."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from python_backends.nouns.request import Floats, Subject
from python_backends.prediction import encoder
from python_backends.prediction.encoder import CachedEncoder, EncoderError, packaged_directory
from python_backends.prediction.forest import Forest
from python_backends.prediction.predictor import LOOK_EVERY_S, MAX_SAVED_S, Budget, Predictor
from python_backends.prediction.request_log import FILE, RequestLog
from python_backends.settings import PredictionSettings
from tests.support.clock import Clock
from tests.support.records import record


class Words:
    """An encoder that counts what it is asked for."""

    name, dim = "words", 32

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> Floats:
        self.asked += texts
        return np.array([[len(text)] * self.dim for text in texts], np.float32)


def subjects(count: int, text: str = "input {}") -> list[Subject]:
    return [Subject("Say it", text.format(i), 10, 500) for i in range(count)]


class House:
    def __init__(
        self, directory: Path, share: float = 1.0, encoder_from: int = 0, encoder: str = "words"
    ) -> None:
        self.log = RequestLog(directory, 1000)
        self.clock, self.words = Clock(), Words()
        settings, budget = PredictionSettings(encoder=encoder), Budget(share, self.clock)
        self.predictor = Predictor(
            settings, directory, lambda: self.words, budget, self.clock, encoder_from=encoder_from
        )

    def looks_again(self) -> None:
        self.clock.now_s += LOOK_EVERY_S
        self.predictor.answer([])
        if self.predictor._loading:
            self.predictor._loading.join()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_it_starts_untrained_and_says_so(house: House) -> None:
    assert [answer.prediction for answer in house.predictor.answer(subjects(3))] == [None] * 3


def test_the_encoder_is_loaded_only_when_there_is_something_to_learn_from(tmp_path: Path) -> None:
    house = House(tmp_path, encoder_from=5)
    house.log.add([record()] * 4)
    house.looks_again()
    assert house.predictor._loading is None
    house.log.add([record()])
    house.looks_again()
    answer = house.predictor.answer(subjects(1))[0]
    assert answer.features is not None
    assert answer.encoder == "words"


def test_no_encoder_is_loaded_where_none_is_wanted(tmp_path: Path) -> None:
    house = House(tmp_path, encoder="none")
    house.log.add([record()] * 10)
    house.looks_again()
    assert house.predictor._loading is None


def test_instructions_and_inputs_that_were_seen_are_not_encoded_again(house: House) -> None:
    house.log.add([record()])
    house.looks_again()
    for _ in range(3):
        house.predictor.answer(subjects(4))
    assert sorted(house.words.asked) == ["Say it", *(f"input {i}" for i in range(4))]


def test_over_budget_nothing_is_encoded(tmp_path: Path) -> None:
    house = House(tmp_path, share=1e-6)
    house.log.add([record()] * 10)
    house.looks_again()
    answers = house.predictor.answer(subjects(64))
    assert all(answer.features is None for answer in answers)
    assert house.words.asked == []


def test_a_batch_is_encoded_as_far_as_the_budget_goes(tmp_path: Path) -> None:
    """It begins with what it saved, and 20 ms a text is what it expects at first."""
    house = House(tmp_path, share=0.1)
    house.log.add([record()] * 10)
    house.looks_again()
    answers = house.predictor.answer(subjects(64))
    made = [answer.features is not None for answer in answers]
    assert 0.1 * MAX_SAVED_S / 0.02 - 3 <= sum(made) <= 0.1 * MAX_SAVED_S / 0.02


def test_an_encoder_that_cannot_be_loaded_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    house = House(tmp_path)
    house.predictor._load = lambda: (_ for _ in ()).throw(EncoderError("it isn't there"))
    house.log.add([record()] * 10)
    for _ in range(3):
        house.looks_again()
    assert house.predictor.answer(subjects(1))[0].features is None
    assert sum("it isn't there" in message for message in caplog.messages) == 1


VERSION = {
    "number": 1,
    "learned_at_s": 0,
    "fit_s": 0,
    "num_observations": 1,
    "encoder": "words",
    "last_id": 1,
}


@pytest.mark.parametrize("content", ["{", '{"number": 1}', json.dumps(VERSION)])
def test_broken_versions_change_nothing(house: House, tmp_path: Path, content: str) -> None:
    house.log.add([record()] * 10)
    (tmp_path / "current.json").write_text(content)
    house.looks_again()
    answer = house.predictor.answer(subjects(1))[0]
    assert answer.features is not None
    assert answer.prediction is None


def test_a_damaged_log_keeps_no_new_forest_away(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forest, "load", lambda path: path.name)
    house.looks_again()
    house.log.close()
    (tmp_path / FILE).write_bytes(b"no database " * 1000)
    (tmp_path / "current.json").write_text(json.dumps(VERSION))
    house.looks_again()
    assert house.predictor._forest == "forest-000001.npz"  # type: ignore[comparison-overlap]


def test_a_budget_grows_with_time_up_to_a_limit_and_pays_for_what_was_too_much() -> None:
    clock = Clock()
    budget = Budget(0.5, clock)
    assert budget.affords(0.5 * MAX_SAVED_S)
    assert not budget.affords(0.5 * MAX_SAVED_S + 0.01)
    budget.spend(3 * 0.5 * MAX_SAVED_S)
    clock.now_s += 2 * MAX_SAVED_S
    assert budget.affords(0.0)
    assert not budget.affords(0.01)
    clock.now_s += 0.1
    assert budget.affords(0.05 - 1e-9)


class Costly(Words):
    """Each text costs processor time, one call more than the others."""

    def __init__(self, clock: list[float], text_s: float, slow_call: int = 0) -> None:
        super().__init__()
        self._clock, self._text_s, self._slow_call, self._calls = clock, text_s, slow_call, 0

    def encode(self, texts: Sequence[str]) -> Floats:
        self._calls += 1
        self._clock[0] += 1.2 if self._calls == self._slow_call else self._text_s * len(texts)
        return super().encode(texts)


@pytest.mark.parametrize(
    ("text_s", "slow_call", "is_new", "share"),
    [(0.002, 2, False, 0.1), (0.016, 0, True, 0.05), (0.9, 0, True, 0.05)],
)
def test_texts_that_cost_more_than_can_be_saved_are_encoded_one_request_at_a_time(
    text_s: float, slow_call: int, is_new: bool, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slow encoding, a slow processor, or a large encoder; a request an hour."""
    used_s = [0.0]
    monkeypatch.setattr("time.thread_time", lambda: used_s[0])
    house = House(tmp_path, share)
    house.words = Costly(used_s, text_s, slow_call)
    house.predictor._load_encoder()
    made = 0
    for hour in range(48):
        house.clock.now_s += 3600
        instruction = f"Say it {hour}" if is_new else "Say it"
        asked = [
            Subject(instruction, f"text {hour}", 10, 500),
            Subject(f"more {hour}", f"other {hour}", 10, 500),
        ]
        answers = house.predictor.answer(asked[: 1 + (text_s > 0.5)])
        made += answers[0].features is not None
        assert hour == 0 or len(answers) == 1 or answers[1].features is None, "beyond the budget"
    assert made == 48
    if is_new:
        assert house.predictor._cost_s == pytest.approx(text_s, rel=0.1), "instructions are texts, too"


def test_without_a_share_nothing_is_affordable() -> None:
    assert not Budget(0.0, time.monotonic).affords(0.0)


def test_remembered_embeddings_are_bounded() -> None:
    words = Words()
    cached = CachedEncoder(words, 2)
    for text in ("a", "bb", "ccc", "bb"):
        cached.encode([text])
    assert words.asked == ["a", "bb", "ccc"]
    assert not cached.knows("a")
    assert cached.encode(["a", "bb", "dddd"]).shape == (3, 32)


def test_a_packaged_model_that_is_not_the_published_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"something else")
    monkeypatch.setattr(encoder, "_find_package", lambda: tmp_path)
    with pytest.raises(EncoderError, match="is not the published model"):
        packaged_directory()
    monkeypatch.setattr(encoder, "_find_package", lambda: None)
    with pytest.raises(EncoderError, match="not installed"):
        packaged_directory()
