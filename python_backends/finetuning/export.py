"""Writes a trained adapter as a PEFT directory, which `PeftModel.from_pretrained` and servers read."""

from __future__ import annotations

from pathlib import Path

from python_backends.engine.torch.adapters import peft_files
from python_backends.finetuning import saved_states
from python_backends.finetuning.jobs import Job, JobError
from python_backends.linux.files import write_directory


def export(job: Job, directory: Path, step: int | None = None) -> int:
    """Writes the adapter as it is in the saved state after `step` (None: the last one) to `directory`, which
    must not exist yet. Returns the step of that saved state. Raises JobError.
    """
    if directory.exists():
        raise JobError(f"{directory}: it exists already")
    steps = saved_states.steps(job.directory / "checkpoints")
    if not steps:
        raise JobError(f"{job.id}: it has no saved state yet")
    if step is not None and step not in steps:
        raise JobError(f"--step {step}: {job.id} has saved states after steps {', '.join(map(str, steps))}")
    place, state = saved_states.read(job.directory / "checkpoints", steps[-1] if step is None else step)
    write_adapter(job, state, directory)
    return place.step


def write_adapter(job: Job, state: saved_states.State, directory: Path) -> None:
    """Raises OSError."""
    weights = {key: each for key, each in state.items() if key.endswith(".weight")}

    def write(path: Path) -> None:
        peft_files.write(path, weights, job.shape, job.fields["model"])

    write_directory(directory, write)
