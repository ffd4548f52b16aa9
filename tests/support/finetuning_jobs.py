"""Jobs that train a tiny model on a few random examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from python_backends.finetuning import jobs, saved_states
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.jobs import Job
from python_backends.settings import EngineSettings, ModelSettings, Settings
from tests.support.tiny_models import VOCABULARY, TinyModel

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK, ALPHA, BATCH_SIZE, SEED = 4, 8.0, 4, 4


def examples(count: int) -> list[Example]:
    """Of unequal lengths; the second half of each is learned."""
    generator = np.random.default_rng(2)
    lengths = generator.integers(6, 24, count)
    return [
        Example(generator.integers(0, VOCABULARY, length).astype(np.int32), np.arange(length) >= length // 2)
        for length in lengths
    ]


def new_job(
    directory: Path,
    steps: int,
    learning_rate: float = 1e-3,
    count: int = 10,
    modules: Sequence[str] = MODULES,
    held_out: int = 0,
) -> Job:
    """`held_out`: how many of its examples are held out of another job with the same ones."""
    fields = {
        "model": "tiny",
        "hyperparameters": {"n_epochs": 1, "batch_size": BATCH_SIZE, "learning_rate_multiplier": 5.0},
        "seed": SEED,
        "gapless": {
            "suffix": "tiny",
            "rank": RANK,
            "alpha": ALPHA,
            "targets": list(modules),
            "learning_rate": learning_rate,
            "steps": steps,
        },
    }
    return jobs.create(directory, examples(count), fields, held_out=examples(held_out))


def settings(tiny: TinyModel) -> Settings:
    return Settings(
        model=ModelSettings(directory=str(tiny.directory), dtype="float32"),
        engine=EngineSettings(threads=1),
    )


def weights(job: Job) -> dict[str, Tensor]:
    """Of the last saved state."""
    found = saved_states.last(job.directory / "checkpoints")
    assert found is not None
    return {key: torch.from_numpy(each) for key, each in found[1].items() if key.endswith(".weight")}
