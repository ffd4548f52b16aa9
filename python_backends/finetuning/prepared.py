"""What is read of a job's files before it begins, in another thread than the one that trains."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.finetuning import checkpoints
from python_backends.finetuning.examples import Examples
from python_backends.finetuning.jobs import Job


@dataclass(frozen=True, slots=True)
class Prepared:
    examples: Examples
    checkpoint: tuple[checkpoints.Place, checkpoints.State] | None  # the last one, if there is one
    start: checkpoints.State | None  # the weights of an adapter with which the job begins


def prepare(job: Job) -> Prepared:
    """Raises OSError and ValueError."""
    checkpoint = checkpoints.last(job.directory / "checkpoints")
    return Prepared(job.examples, checkpoint, job.start if checkpoint is None else None)
