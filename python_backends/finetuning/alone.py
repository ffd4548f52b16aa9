"""A job from its data to its end in one process, without a server. Tested in tests/cpu/test_finetuning.py."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from python_backends.engine.adapter_directory import NAME
from python_backends.finetuning import jobs
from python_backends.finetuning.datasets import DatasetError, Example, read_examples
from python_backends.finetuning.packs import steps_a_pass
from python_backends.finetuning.progress import Bar, plot
from python_backends.finetuning.trainer import Files, Trainer
from python_backends.settings import Settings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.door.door import open_door

LEAST_RATE_UNIT = 2e-4  # OpenAI's learning_rate_multiplier multiplies this
LIMITS = {
    "rank": (1, 256),
    "alpha": (1e-3, 1e4),
    "epochs": (1, 10_000),
    "batch_size": (1, 4096),
    "seed": (0, 2**63 - 1),
}


def read_data(settings: Settings, path: Path) -> list[Example]:
    """Raises DatasetError, which names the file, CheckpointError or OSError."""
    door = open_door(
        read_checkpoint(settings.model_directory), settings.limits, settings.model.max_model_tokens
    )
    try:
        with path.open("rb") as lines:
            return read_examples(lines, door)
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from error


def new_job(settings: Settings, data: Path, asked: argparse.Namespace) -> jobs.Job:
    """A queued job for the training data and the options of `submit`. ValueError names what is wrong."""
    for name, (least, most) in LIMITS.items():
        if not least <= getattr(asked, name) <= most:
            option = f"--{name.replace('_', '-')} {getattr(asked, name)}"
            raise ValueError(f"{option}: must be between {least:g} and {most:g}")
    if not 0 < asked.learning_rate <= 1:
        raise ValueError(f"--learning-rate {asked.learning_rate:g}: must be above 0 and at most 1")
    if not NAME.fullmatch(asked.name):
        raise ValueError(f"--name {asked.name!r}: at most 128 letters, digits and . _ : -, the first no sign")
    if settings.adapters.directory and asked.rank > settings.adapters.max_rank:
        most = settings.adapters.max_rank
        raise ValueError(f"--rank {asked.rank}: must be at most adapters.max_rank = {most}")
    if asked.steps is not None and asked.steps < 1:
        raise ValueError(f"--steps {asked.steps}: must be at least 1")
    examples = read_data(settings, data)
    fields = {
        "model": settings.model_directory.name,
        "training_file": data.name,
        "hyperparameters": {
            "n_epochs": asked.epochs,
            "batch_size": asked.batch_size,
            "learning_rate_multiplier": asked.learning_rate / LEAST_RATE_UNIT,
        },
        "seed": asked.seed,
        "gapless": {
            "suffix": asked.name,
            "alone": asked.alone,
            "rank": asked.rank,
            "alpha": asked.alpha,
            "targets": _targets(settings, asked.targets),
            "learning_rate": asked.learning_rate,
            "steps": asked.steps or asked.epochs * steps_a_pass(len(examples), asked.batch_size),
        },
    }
    return jobs.create(jobs.jobs_directory(settings), examples, fields)


def _targets(settings: Settings, targets: str) -> list[str]:
    """Names of modules; ValueError if the model has none of a name."""
    from python_backends.engine.model.checkpoint import read_config  # brings torch along
    from python_backends.engine.model.families import module_names

    known = module_names(read_config(settings))
    chosen = list(known) if targets == "all" else targets.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"--targets {','.join(unknown)}: must be among {', '.join(known)}, or all")
    return chosen


def train(job: jobs.Job, settings: Settings) -> None:
    """Until the job has ended. JobError if it has, or if another process trains it."""
    with job.locked():
        job.check_open()
        session = _session(job, settings)
        with Bar(job) as bar:
            files = Files(AtOnce(), settings.adapters_directory)
            Trainer(job, session, settings.finetuning, files, bar.show).run()
        plot(job)


def _session(job: jobs.Job, settings: Settings) -> Any:
    from python_backends.engine.torch.training.model import load_trained_model  # brings torch along
    from python_backends.engine.torch.training.session import TrainingSession

    if settings.model.dtype == "auto":
        settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, dtype="float32"))
    return TrainingSession(load_trained_model(settings), job.shape, int(job.fields["seed"]))


class AtOnce(Executor):
    """Runs what it is given before `submit` returns."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done
