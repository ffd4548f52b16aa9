"""The length predictor beside a real server, where an encoder is named: it is asked, and whatever becomes of
it, answers come as if it were not there.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.server.serving import ROOT, Answer, Gapless, settled, wait_for
from tests.support.toy_engine import toy_settings

ENCODED = {"prediction.encoder": "packaged"}
WELL, SLEEPING = "well", "sleep"
COMPLAINT = "serving goes on without its predictions"
MOODY = """
import os, time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.nouns.messages import LengthAnswer, reader
from python_backends.nouns.request import LengthPrediction, Subject
from python_backends.triton_models.tensors import Blobs

SUBJECTS = reader(tuple[Subject, ...])


class TritonPythonModel:
    def initialize(self, args):
        self._blobs = Blobs()

    def execute(self, requests):
        return [self._answer(self._blobs.message(request, "subjects", SUBJECTS)) for request in requests]

    def _answer(self, subjects):
        mood = Path("{mood}").read_text()
        if mood == "sleep":
            while Path("{mood}").read_text() == mood:
                time.sleep(0.1)
        if mood == "throw":
            raise RuntimeError("on purpose")
        if mood == "exit":
            os._exit(1)
        if mood == "garbage":
            garbage = np.zeros((1, 99), np.uint8)
            return pb_utils.InferenceResponse([pb_utils.Tensor("length_answers", garbage)])
        mean = float("nan") if mood == "nan" else 3.0
        quantiles = np.array([1, 2, 3, 4, 5, 6], np.float32)
        answers = tuple(LengthAnswer(LengthPrediction(mean, quantiles), 1) for _ in subjects)
        return pb_utils.InferenceResponse([self._blobs.tensor("length_answers", answers)])
"""


class Moody:
    """A Gapless whose predictor does what a file says."""

    def __init__(self, directory: Path, toy_model: Path) -> None:
        repository = directory / "repository"
        shutil.copytree(ROOT / "model_repository", repository)
        self._mood = directory / "mood"
        self.set(WELL)
        (repository / "length_predictor/1/model.py").write_text(MOODY.replace("{mood}", str(self._mood)))
        settings = {
            **toy_settings(toy_model, step_ms=5),
            **ENCODED,
            "engine.slots": 2,
            "server.model_repository": repository,
        }
        self.gapless = Gapless(**settings)

    def set(self, mood: str) -> None:
        self._mood.write_text(mood)

    def ask(self) -> list[str]:
        """The texts of five requests at once, on two slots."""
        client = self.gapless.grpc()
        asked: list[Answer] = [client.ask(str(i), text_input=f"Say it: {i}", max_tokens=20) for i in range(5)]
        client.finish()
        client.close()
        return [answer.text for answer in asked]


@pytest.fixture(scope="module")
def moody(tmp_path_factory: pytest.TempPathFactory, toy_model: Path) -> Iterator[Moody]:
    made = Moody(tmp_path_factory.mktemp("moody"), toy_model)
    with made.gapless:
        yield made
        made.set(WELL)
    assert made.gapless.log.count(COMPLAINT) == 1, made.gapless.log


def num_predicted(gapless: Gapless) -> float:
    """By the predictor, as if by its forest."""
    return gapless.metrics().get('gapless_length_predictions_total{source="forest"}', 0)


def test_a_predictor_that_is_well_is_asked_and_heard(moody: Moody) -> None:
    before = num_predicted(moody.gapless)
    # answers that end at once may be too fast for it
    wait_for(lambda: moody.ask() and num_predicted(moody.gapless) >= before + 4, 60)
    assert moody.gapless.metrics()["gapless_predictor_version"] == 1


@pytest.mark.parametrize("mood", ["throw", "nan", "garbage", "exit", SLEEPING])
def test_texts_are_the_same_and_nobody_waits_for_a_predictor_that_fails(moody: Moody, mood: str) -> None:
    """One that sleeps until the answers have come, raises, answers nonsense or dies: the
    texts are the same, and nobody has waited.
    """
    moody.set(WELL)
    texts = moody.ask()
    moody.set(mood)
    for _ in range(2):
        assert moody.ask() == texts
    moody.set(WELL)


def test_a_dead_predictor_is_loaded_again(moody: Moody) -> None:
    pid = wait_for(lambda: moody.gapless.stub_pid("length_predictor"), 60)
    moody.gapless.kill(pid)
    texts = moody.ask()
    assert wait_for(lambda: moody.gapless.stub_pid("length_predictor") != pid, 60)
    before = num_predicted(moody.gapless)

    def is_predicted_again() -> bool:
        assert moody.ask() == texts, "whether or not the predictor is back"
        return num_predicted(moody.gapless) > before

    wait_for(is_predicted_again, 60)


def learner_of(gapless: Gapless) -> int:
    lines = gapless.command_lines().items()
    return next((pid for pid, words in lines if "gapless-learner" in " ".join(words)), 0)


def test_a_dead_learner_is_started_again_and_misses_nothing(moody: Moody) -> None:
    """What ended meanwhile waits for it."""
    log = next(Path(moody.gapless.learned).glob("*/requests.sqlite"))

    def num_logged() -> int:
        with sqlite3.connect(log) as file:
            return int(file.execute("SELECT MAX(id) FROM answers").fetchone()[0] or 0)

    pid = wait_for(lambda: learner_of(moody.gapless), 60)
    assert psutil.Process(pid).nice() >= 15
    before = settled(num_logged)
    moody.gapless.kill(pid)
    moody.ask()
    wait_for(lambda: learner_of(moody.gapless) not in (0, pid), 60)
    wait_for(lambda: num_logged() == before + 5, 240)  # others go first where the machine is busy


@pytest.fixture
def gapless(toy_model: Path) -> Iterator[Gapless]:
    with Gapless(**{**toy_settings(toy_model), **ENCODED, "scheduling.policy": "ours"}) as served:
        yield served


@pytest.mark.slow
def test_the_predictor_stands_back(gapless: Gapless) -> None:
    """It interrupts nobody, and loads nothing before there is something
    to learn from; and clients can't ask it.
    """
    process = psutil.Process(gapless.stub_pid("length_predictor"))
    assert process.nice() >= 15
    assert b"libtorch" not in Path(f"/proc/{process.pid}/maps").read_bytes()
    status, text = gapless.post("/v2/models/length_predictor/infer", forged())
    assert status != 200
    assert "not for clients" in text


def test_without_an_encoder_there_is_no_such_process_and_lengths_are_predicted_all_the_same(
    toy_model: Path,
) -> None:
    with Gapless(**{**toy_settings(toy_model), "scheduling.policy": "ours"}) as gapless:
        assert gapless.stub_pid("scheduler")
        lines = (" ".join(words) for words in gapless.command_lines().values())
        assert not [line for line in lines if "/length_predictor/" in line]
        for number in range(10):
            gapless.generate(text_input=f"Say it: {number}", max_tokens=5)
        wait_for(
            lambda: gapless.metrics().get('gapless_length_predictions_total{source="history"}', 0) > 0, 60
        )


def forged() -> dict[str, object]:
    return {"inputs": [{"name": "subjects", "shape": [1, 40], "datatype": "UINT8", "data": [7] * 40}]}
