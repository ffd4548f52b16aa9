"""Writes a trained adapter as a PEFT directory, which `PeftModel.from_pretrained` and servers read."""

from __future__ import annotations

from pathlib import Path

from python_backends.engine.torch.adapters import peft_files
from python_backends.finetuning import checkpoints
from python_backends.finetuning.jobs import Job, JobError
from python_backends.linux.files import write_directory


def export(job: Job, directory: Path, step: int | None = None) -> int:
    """Writes the adapter as it is in the checkpoint after `step` (None: the last one) to `directory`, which
    must not exist yet. Returns the step of that checkpoint. Raises JobError.
    """
    if directory.exists():
        raise JobError(f"{directory}: it exists already")
    steps = checkpoints.steps(job.directory / "checkpoints")
    if not steps:
        raise JobError(f"{job.id}: it has no checkpoint yet")
    if step is not None and step not in steps:
        raise JobError(f"--step {step}: {job.id} has checkpoints after steps {', '.join(map(str, steps))}")
    place, state = checkpoints.read(job.directory / "checkpoints", steps[-1] if step is None else step)
    weights = {key: each for key, each in state.items() if key.endswith(".weight")}

    def write(path: Path) -> None:
        peft_files.write(path, weights, job.shape, job.fields["model"])

    write_directory(directory, write)
    return place.step
