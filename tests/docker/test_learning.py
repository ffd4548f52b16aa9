"""What a container learns is in the volume: used again after `down` and `up`, and not by another model."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from client import Client
from client.errors import GaplessError
from python_backends.prediction.predictor import ENCODER_FROM
from tests.support.composed import ROOT, Composed, look_until

QUICKLY = {  # with few slots requests compete, so that every one is encoded
    "prediction.encoder": "packaged",
    "prediction.relearn_s": 5,
    "engine.slots": 4,
}
LOG = "/requests.sqlite"
LINES = (ROOT / "client/bench/tasks.jsonl").read_text().splitlines()
TASKS = [json.loads(line)["messages"] for line in LINES[:24]]  # few: each is encoded once
COUNT = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM answers").fetchone()[0])
"""


@pytest.fixture(scope="module")
def learning(composed: Composed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """A project of its own that learns within seconds; the image is that of all tests here."""
    model = Path(shutil.copytree(ROOT / "models/bundled", tmp_path_factory.mktemp("learning") / "model"))
    arguments = " ".join(f"--set {name}={value}" for name, value in QUICKLY.items())
    project = Composed(f"gapless-learning-{os.getpid()}", model, arguments)
    project.up()
    yield project
    project.compose("down", "--volumes", "--remove-orphans")


def ask(project: Composed, count: int) -> None:
    """Sends `count` tasks of the bundled model, a dozen at a time; their answers end by themselves."""
    asked = [TASKS[number % len(TASKS)] for number in range(count)]
    with Client(f"127.0.0.1:{project.grpc_port}") as client, ThreadPoolExecutor(12) as pool:
        answers = pool.map(lambda messages: client.generate(messages, max_tokens=100), asked)
        try:
            assert all(answer.finish_reason for answer in answers)
        except GaplessError as error:
            raise AssertionError(f"{error}; the container says:\n{project.log()[-4000:]}") from error


def ask_until(project: Composed, condition: Callable[[], bool]) -> None:
    """The pauses are for the encoder and the learner, which wait for idle processors."""
    for _ in range(60):
        ask(project, 48)
        if condition():
            return
        time.sleep(3)
    raise AssertionError(f"it did not come true; the container says:\n{project.log()[-2000:]}")


def places(project: Composed) -> set[str]:
    """The directories of models of which something was learned."""
    return {name.removesuffix(LOG) for name in files(project) if name.endswith(LOG)}


def files(project: Composed) -> set[str]:
    return set(project.inside("cd /data && find . -type f -printf '%P\\n'").split())


def num_logged(project: Composed, place: str) -> int:
    return int(project.inside(f".venv/bin/python -c '{COUNT}' /data/{place}{LOG}"))


def num_by_forest(project: Composed) -> float:
    """How many answers' lengths the forest has predicted."""
    return project.metrics().get('gapless_length_predictions_total{source="forest"}', 0)


def test_what_is_learned_outlives_down_and_up_and_is_each_models_own(learning: Composed) -> None:
    ask(learning, ENCODER_FROM)
    ask_until(learning, lambda: any(re.search(r"/forest-\d+\.npz$", name) for name in files(learning)))
    (place,) = places(learning)
    assert {f"{place}{LOG}", f"{place}/current.json"} <= files(learning)
    known = num_logged(learning, place)
    assert known >= 100
    learning.compose("down")

    learning.up()
    assert num_logged(learning, place) >= known
    ask_until(learning, lambda: num_by_forest(learning) > 0)  # the encoder is loaded meanwhile
    assert places(learning) == {place}
    learning.compose("down")

    weights = learning.model / "model.safetensors"
    changed = {name: tensor * 1.02 for name, tensor in load_file(weights).items()}
    save_file(changed, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors writes it for its own user only
    learning.up()
    ask(learning, 24)
    look_until(lambda: len(places(learning)) == 2, 60)
    (other,) = places(learning) - {place}
    look_until(lambda: num_logged(learning, other) >= 24, 60)
    assert num_by_forest(learning) == 0, "the other model has learned nothing yet"
