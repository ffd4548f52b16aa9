"""The task mix changes in mid-run: the error rises, the learner acts, the
error falls back (the loop of benchmarks/drift.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common.length_requests import Asked
from benchmarks.drift import Run
from python_backends.nouns.request import Floats, Subject

RATE = 1.0  # requests a virtual second
COUNT = 450  # of each task: the learner looks every 180 s


class Initials:
    """Embeddings by the first letter."""

    name, dim = "initials", 32

    def encode(self, texts: Sequence[str]) -> Floats:
        return np.array([[ord(text[0])] * self.dim for text in texts], np.float32)


def requests(instruction: str, factor: int, rng: np.random.Generator) -> list[Asked]:
    inputs = rng.integers(5, 60, COUNT)
    return [
        Asked(instruction, Subject(instruction, "some input", int(n), 1024), int(factor * n)) for n in inputs
    ]


def test_the_error_rises_when_the_mix_changes_and_falls_when_it_has_been_learned(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    run = Run(tmp_path, Initials())
    asked = [*requests("Copy", 1, rng), *requests("Explain", 5, rng)]
    errors = np.array([run.step(number / RATE, each)[0] for number, each in enumerate(asked)])
    learned = [int(at_s * RATE) for at_s in run.learned_at_s]
    run.close()
    before, after = errors[COUNT - 100 : COUNT], errors[COUNT : COUNT + 50]
    assert before.mean() < 3
    assert after.mean() > 20 * before.mean()
    assert errors[-100:].mean() < after.mean() / 10
    assert sum(at >= COUNT for at in learned) >= 1
