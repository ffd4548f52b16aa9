"""A job from its data to its end in one process, without a server."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Any

from commands.finetune.beginning import beginning, name_of
from commands.finetune.progress import Bar, plot
from python_backends.checkpoint import model_names
from python_backends.engine.adapter_directory import wrong_name
from python_backends.finetuning import jobs
from python_backends.finetuning.datasets import DatasetError, Example, read_examples
from python_backends.finetuning.job_fields import LEARNING_RATE, LIMITS, MOST_STEPS
from python_backends.finetuning.pack_memory import PackMemory
from python_backends.finetuning.packs import steps_a_pass
from python_backends.finetuning.trainer import Files, Trainer
from python_backends.linux.process_group import obeyed
from python_backends.settings import Settings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.door.door import open_door


def read_data(settings: Settings, path: Path) -> list[Example]:
    """Raises DatasetError, which names the file, or CheckpointError."""
    door = open_door(
        read_checkpoint(settings.model_directory), settings.limits, settings.model.max_model_tokens
    )
    try:
        with path.open("rb") as lines:
            return read_examples(lines, door)
    except (DatasetError, OSError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise DatasetError(f"{path}: {said}") from error


def new_job(settings: Settings, data: Path, asked: argparse.Namespace) -> jobs.Job:
    """A queued job for the training data and the options of `submit`. ValueError names what is wrong."""
    name = name_of(asked)
    _check_options(settings, asked, name)
    shape, weights = beginning(settings, asked)
    examples = read_data(settings, data)
    held_out = read_data(settings, asked.held_out) if asked.held_out else None
    fields = {
        "model": model_names.name_of(settings.model_directory),
        "training_file": data.name,
        "validation_file": asked.held_out.name if asked.held_out else None,
        "hyperparameters": {
            "n_epochs": asked.epochs,
            "batch_size": asked.batch_size,
            "learning_rate_multiplier": asked.learning_rate / LEARNING_RATE,
        },
        "seed": asked.seed,
        "gapless": {
            "suffix": name,
            "alone": asked.alone,
            "rank": shape.rank,
            "alpha": shape.alpha,
            "targets": list(shape.modules),
            "learning_rate": asked.learning_rate,
            "steps": asked.steps or asked.epochs * steps_a_pass(len(examples), asked.batch_size),
            "from": asked.start or "",
        },
    }
    return jobs.create(jobs.jobs_directory(settings), examples, fields, weights, held_out)


def _check_options(settings: Settings, asked: argparse.Namespace, name: str) -> None:
    """Raises ValueError."""
    for option, (least, most) in LIMITS.items():
        value = getattr(asked, option)
        if value is not None and not least <= value <= most:
            given = f"--{option.replace('_', '-')} {value}"
            raise ValueError(f"{given}: must be between {least:g} and {most:g}")
    if not 0 < asked.learning_rate <= 1:
        raise ValueError(f"--learning-rate {asked.learning_rate:g}: must be above 0 and at most 1")
    if wrong := wrong_name(name):
        raise ValueError(f"--name {wrong}")
    if asked.steps is not None and not 1 <= asked.steps <= MOST_STEPS:
        raise ValueError(f"--steps {asked.steps}: must be at least 1 and at most {MOST_STEPS}")


def train(job: jobs.Job, settings: Settings) -> None:
    """Until the job has ended. JobError if it has, or if another process trains it."""
    with job.locked(), _ended_by_a_signal(job):
        job.check_open()
        adapter = _new_adapter(job, settings)
        with Bar(job) as bar:
            files = Files(AtOnce(), settings.adapters_directory)
            Trainer(job, adapter, PackMemory(adapter), files, bar.show).run()
        plot(job)


@contextlib.contextmanager
def _ended_by_a_signal(job: jobs.Job) -> Iterator[None]:
    """A process that someone ends, by Ctrl-C, by SIGTERM or with its terminal (unless `nohup` started it),
    says so: it has not died of the job. Raises KeyboardInterrupt for all three.
    """
    before = {each: signal.signal(each, signal.default_int_handler) for each in obeyed(SIGTERM, SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        job.say("its process was ended")
        raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _new_adapter(job: jobs.Job, settings: Settings) -> Any:
    from python_backends.engine.torch.training.lora_in_training import LoraInTraining  # brings torch along
    from python_backends.engine.torch.training.model import load_trained_model

    if settings.model.dtype == "auto":
        settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, dtype="float32"))
    return LoraInTraining(load_trained_model(settings), job.shape, int(job.fields["seed"]))


class AtOnce(Executor):
    """Runs what it is given before `submit` returns."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done
