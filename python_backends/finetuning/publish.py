"""Puts a trained adapter into the directory of adapters, as the newest version of its name."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path

from python_backends.engine.adapter_directory import CONFIG, WEIGHTS, numbered
from python_backends.finetuning.export import export
from python_backends.finetuning.files import write_directory
from python_backends.finetuning.jobs import Job, JobError


def finish(job: Job, adapters: Path | None) -> str:
    """Writes the adapter of the last checkpoint to the job's directory, and to `adapters` unless that is
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
        job.say(f"the adapter is not served: {error}", "warn")
        return ""


def _publish(job: Job, adapters: Path) -> str:
    """Returns the number of the version."""
    trained, directory = job.directory / "adapter", adapters / job.options["suffix"]
    if (directory / CONFIG).exists():
        raise JobError(f"{directory} is an adapter without versions")
    versions = numbered(directory)
    for version in versions:
        if filecmp.cmp(trained / WEIGHTS, version / WEIGHTS, shallow=False):
            return version.name
    number = str(int(versions[-1].name) + 1 if versions else 1)
    write_directory(directory / number, lambda path: _copy(trained, path))
    return number


def _copy(source: Path, destination: Path) -> None:
    for file in source.iterdir():
        shutil.copyfile(file, destination / file.name)
