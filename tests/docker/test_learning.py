"""What a container learns is in the volume: used again after `down` and `up`, and not by another model."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from client import Client
from tests.docker.composed import ROOT, Composed
from tests.server.serving import wait_for

pytestmark = pytest.mark.timeout(1200)

QUICKLY = {"encoder_from": 20, "processor_share": 1, "sample_every_s": 0, "relearn_s": 5}
LINES = (ROOT / "client/bench/tasks.jsonl").read_text().splitlines()
TASKS = [json.loads(line)["messages"] for line in LINES]
COUNT = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM answers").fetchone()[0])
"""


@pytest.fixture(scope="module")
def learning(composed: Composed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """A project of its own that learns within seconds; the image is that of all tests here."""
    model = Path(shutil.copytree(ROOT / "models/bundled", tmp_path_factory.mktemp("learning") / "model"))
    arguments = " ".join(f"--set prediction.{name}={value}" for name, value in QUICKLY.items())
    project = Composed(f"gapless-learning-{os.getpid()}", model, arguments)
    project.up()
    yield project
    project.compose("down", "--volumes", "--remove-orphans")


def ask(project: Composed, count: int) -> None:
    """So many tasks of the bundled model, whose answers end by themselves, a dozen at a time."""
    asked = [TASKS[number % len(TASKS)] for number in range(count)]
    with Client(f"127.0.0.1:{project.grpc_port}") as client, ThreadPoolExecutor(12) as pool:
        answers = pool.map(lambda messages: client.generate(messages, max_tokens=100), asked)
        assert all(answer.finish_reason for answer in answers)


def files(project: Composed) -> set[str]:
    return set(project.inside("cd /data && find . -type f -printf '%P\\n'").split())


def num_logged(project: Composed, place: str) -> int:
    return int(project.inside(f".venv/bin/python -c '{COUNT}' /data/{place}/requests.sqlite"))


def predictions(project: Composed) -> dict[str, float]:
    """How many answers' lengths have been predicted, by what said so."""
    connection = http.client.HTTPConnection("127.0.0.1", project.metrics_port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.findall(r'^gapless_length_predictions_total{source="(\w+)"} (\S+)$', text, re.MULTILINE)
    return {source: float(count) for source, count in found}


def test_what_is_learned_outlives_down_and_up_and_is_each_models_own(learning: Composed) -> None:
    ask(learning, 200)
    wait_for(lambda: any(re.search(r"/forest-\d+\.npz$", name) for name in files(learning)), 180)
    ((place, *_),) = {tuple(name.split("/")[:1]) for name in files(learning)}
    assert {f"{place}/requests.sqlite", f"{place}/current.json"} <= files(learning)
    wait_for(lambda: num_logged(learning, place) >= 200, 60)
    learning.compose("down")

    learning.up()
    assert num_logged(learning, place) >= 200
    ask(learning, 24)  # the first of them may come before the encoder is there
    wait_for(lambda: predictions(learning).get("forest", 0) > 0, 60)
    wait_for(lambda: num_logged(learning, place) >= 224, 60)
    assert {name.split("/")[0] for name in files(learning)} == {place}
    learning.compose("down")

    weights = learning.model / "model.safetensors"
    save_file(
        {name: tensor * 1.02 for name, tensor in load_file(weights).items()},
        weights,
        metadata={"format": "pt"},
    )
    learning.up()
    ask(learning, 24)
    wait_for(lambda: len({name.split("/")[0] for name in files(learning)}) == 2, 60)
    (other,) = {name.split("/")[0] for name in files(learning)} - {place}
    wait_for(lambda: num_logged(learning, other) >= 24, 60)
    assert predictions(learning).get("forest", 0) == 0, "the other model has learned nothing yet"
