"""What a process of `coserving` is, the model that all have, and the job that they train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.finetuning_trainers import make_job, random_examples
from benchmarks.common.models import VOCABULARY
from python_backends.finetuning import jobs
from python_backends.settings import (
    EngineSettings,
    FinetuningSettings,
    ModelSettings,
    SchedulingSettings,
    Settings,
)

SLOTS, MAX_MODEL_TOKENS, KV_GIB = 32, 512, 0.75
EXAMPLE_TOKENS, NUM_EXAMPLES, BATCH_SIZE = 256, 1024, 4
MANY_STEPS = 10**6  # of a job: it does not end here


@dataclass(frozen=True, slots=True)
class Model:
    shape: str
    directory: Path
    dtype: str
    num_layers: int


@dataclass(frozen=True, slots=True)
class Spec:
    """A process: what it does, on how many threads, on which processors (None: all)."""

    kind: str  # serve | train | peft
    threads: int
    processors: tuple[int, ...] | None = None
    training: str = ""  # of one that serves: coserving, or temporal_ and a number


def settings_of(model: Model, spec: Spec, slo_s: float = 0.1) -> Settings:
    return Settings(
        model=ModelSettings(
            directory=str(model.directory), dtype=model.dtype, max_model_tokens=MAX_MODEL_TOKENS
        ),
        engine=EngineSettings(
            kind="torch",
            slots=SLOTS,
            kv_memory_gib=KV_GIB,
            threads=spec.threads,
        ),
        scheduling=SchedulingSettings(late_token_ms=slo_s * 1000),
        finetuning=FinetuningSettings(enabled=spec.kind != "serve" or bool(spec.training)),
    )


def endless_job(
    directory: Path, lengths: Sequence[int] = (EXAMPLE_TOKENS,) * NUM_EXAMPLES, vocabulary: int = VOCABULARY
) -> jobs.Job:
    """Examples of `lengths` tokens, random ids, all learned."""
    return make_job(directory, random_examples(lengths, 1.0, vocabulary), BATCH_SIZE, MANY_STEPS)
