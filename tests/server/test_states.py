"""Lengths from the model's own hidden states, as served: learned, used for every request, and no more than an
estimate: answers are the same without it.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from commands.logged_answers import rank_correlation
from python_backends.prediction.request_log import FILE
from tests.support.server.serving import ROOT, Gapless, wait_for

STATE = 'gapless_length_predictions_total{source="state"}'
NUM_LEARNED = 60


@pytest.fixture(scope="module")
def gapless() -> Iterator[Gapless]:
    """The learner looks every two seconds."""
    with Gapless(**{"prediction.relearn_s": 2}) as served:
        yield served


def prompts(count: int, seed: int) -> list[str]:
    """Names of one to six words to convert, whose answers are as long as they."""
    generator = np.random.default_rng(seed)
    words = np.array(
        [
            "read",
            "all",
            "lines",
            "of",
            "the",
            "next",
            "file",
            "and",
            "send",
            "them",
            "to",
            "every",
            "open",
            "queue",
            "now",
        ]
    )
    return [
        "Convert to camelCase: " + "_".join(generator.choice(words, generator.integers(1, 7)))
        for _ in range(count)
    ]


def ask(gapless: Gapless, texts: list[str]) -> list[str]:
    client = gapless.grpc()
    chats = [json.dumps([{"role": "user", "content": text}]) for text in texts]
    asked = [client.ask(str(number), messages=chat) for number, chat in enumerate(chats)]
    client.finish(240)
    client.close()
    return [answer.text for answer in asked]


def num_predicted(gapless: Gapless) -> float:
    return gapless.metrics().get(STATE, 0)


def logged(gapless: Gapless) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "commands.stats", "--json", "-"]
    for setting in (f"prediction.directory={gapless.learned}", "model.directory=models/bundled"):
        command += ["--set", setting]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: list[dict[str, float]] = json.loads(done.stdout)
    return found


def learned(gapless: Gapless) -> Path | None:
    return next(iter(sorted(Path(gapless.learned).glob("*/regressions-*.npz"), reverse=True)), None)


def test_what_was_asked_is_learned_and_every_later_request_is_predicted(gapless: Gapless) -> None:
    ask(gapless, prompts(NUM_LEARNED, seed=1))
    wait_for(lambda: learned(gapless), 120)
    wait_for(lambda: ask(gapless, prompts(1, seed=2)) and num_predicted(gapless) > 0, 60)
    before = len(logged(gapless))
    predicted_before = num_predicted(gapless)
    asked = prompts(30, seed=3)
    ask(gapless, asked)
    wait_for(lambda: len(logged(gapless)) == before + len(asked), 60)
    assert num_predicted(gapless) == predicted_before + len(asked)
    newest = logged(gapless)[before:]
    assert all(each["predicted"] is not None for each in newest)
    lengths, means = (np.array([each[name] for each in newest], float) for name in ("length", "predicted"))
    assert rank_correlation(means, lengths) > 0.7


def test_a_version_that_is_nonsense_changes_no_text(gapless: Gapless) -> None:
    texts = prompts(10, seed=4)
    expected = ask(gapless, texts)
    path = wait_for(lambda: learned(gapless), 120)
    with np.load(path) as arrays:
        broken = {
            name: np.full_like(arrays[name], np.nan) if name.endswith("weights") else arrays[name]
            for name in arrays
        }
    current = path.with_name("current-regressions.json")
    np.savez(path.with_name("regressions-900000.npz"), **broken)
    path.with_name("regressions-900001.npz").write_bytes(b"nonsense")

    def have(number: int) -> None:
        """Hardly anything is newer than what it was learned from, so the learner makes no other version."""
        with closing(sqlite3.connect(path.with_name(FILE))) as log:
            (last_id,) = log.execute("SELECT MAX(id) FROM answers").fetchone()
        version = json.loads(current.read_text())
        current.write_text(json.dumps(version | {"number": number, "last_id": last_id}))

    def is_silent() -> bool:
        """Whether nothing is predicted; the texts are the same anyway."""
        have(900_000)
        before = num_predicted(gapless)
        assert ask(gapless, texts) == expected
        return num_predicted(gapless) == before

    def is_refused() -> bool:
        have(900_001)
        assert ask(gapless, texts) == expected
        return "regressions-900001.npz" in gapless.log

    wait_for(is_silent, 120)
    wait_for(is_refused, 120)
