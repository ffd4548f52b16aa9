"""Puts a trained adapter into the directory of adapters, as the newest version of its name."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path

from python_backends.engine.adapter_directory import CONFIG, NUMBER, WEIGHTS, numbered
from python_backends.finetuning.export import export, write_adapter
from python_backends.finetuning.jobs import Job, JobError
from python_backends.finetuning.saved_states import State
from python_backends.linux.files import write_directory

NOT_SERVED = "the adapter is not served: "  # an event that says why begins so


def finish(job: Job, adapters: Path | None) -> str:
    """Writes the adapter of the last saved state to the job's directory, and to `adapters` unless that is
    None. Each is done once, also if the process is killed in the middle. Returns the `name@version` that is
    served; empty: none is. Raises JobError and OSError.
    """
    if not (job.directory / "adapter").exists():
        export(job, job.directory / "adapter")
    if adapters is None:
        return ""
    try:
        return f"{job.options['suffix']}@{_publish(job, adapters)}"
    except (JobError, OSError) as error:
        job.say(f"{NOT_SERVED}{error}", "warn")
        return ""


def publish_state(job: Job, state: State, directory: Path) -> str:
    """Writes the adapter of `state` as the newest version in `directory`. Returns its `name@version`. Raises
    JobError and OSError.
    """
    number = _next_number(directory)
    write_adapter(job, state, directory / number)
    return f"{directory.name}@{number}"


def _publish(job: Job, adapters: Path) -> str:
    """Returns the number of the version."""
    match job.held_out_losses:
        case [before, after] if not after < before:
            raise JobError(f"the loss of the held-out examples was {before:.4g} before, and is {after:.4g}")
    trained, directory = job.directory / "adapter", adapters / job.options["suffix"]
    number = _next_number(directory)
    for newest in numbered(directory)[-1:]:
        if _is_same(trained, newest):  # published before a crash
            return newest.name
    write_directory(directory / number, lambda path: _copy(trained, path))
    return number


def _is_same(trained: Path, version: Path) -> bool:
    """A version that is incomplete, or can't be read, is another one."""
    try:
        return all(filecmp.cmp(trained / name, version / name, shallow=False) for name in (CONFIG, WEIGHTS))
    except OSError:
        return False


def _next_number(directory: Path) -> str:
    """One more than whatever has a number as its name, also what is no version. Raises JobError."""
    if (directory / CONFIG).exists():
        raise JobError(f"{directory} is an adapter without versions")
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    number = str(1 + max((int(name) for name in names if NUMBER.fullmatch(name)), default=0))
    if not NUMBER.fullmatch(number):
        raise JobError(f"{directory}: no version can come after {int(number) - 1}")
    return number


def _copy(source: Path, destination: Path) -> None:
    for file in source.iterdir():
        shutil.copyfile(file, destination / file.name)
