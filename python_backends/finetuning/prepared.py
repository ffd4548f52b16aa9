"""What is read of a job's files before it begins, in another thread than the one that trains."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.finetuning import saved_states
from python_backends.finetuning.examples import Examples
from python_backends.finetuning.jobs import Job


@dataclass(frozen=True, slots=True)
class Prepared:
    examples: Examples
    saved: tuple[saved_states.Place, saved_states.State] | None  # the last one, if there is one
    start: saved_states.State | None  # the weights of an adapter with which the job begins
    held_out: Examples | None = None


def prepare(job: Job) -> Prepared:
    """Raises OSError and ValueError."""
    saved = saved_states.last(job.directory / "checkpoints")
    return Prepared(job.examples, saved, job.start if saved is None else None, job.held_out)
