"""Removes adapters that jobs have made: they are no models of this server any more."""

from __future__ import annotations

import shutil
from pathlib import Path

from front.errors import ProblemError
from python_backends.engine.adapter_directory import CONFIG, NAME, numbered
from python_backends.finetuning.jobs import all_jobs


def remove_adapter(asked: str, adapters: Path | None, jobs: Path) -> None:
    """`asked`: NAME@NUMBER, or NAME for all its versions. Raises ProblemError: there is none, or no job in
    `jobs` has made it.
    """
    name, at, number = asked.partition("@")
    directory = adapters / name if adapters is not None and NAME.fullmatch(name) else None
    found = numbered(directory) if directory is not None else []
    versions = [path for path in found if not at or number == path.name]
    if not versions:
        if directory is not None and (directory / CONFIG).exists():
            raise _not_made(name)  # jobs make versions alone
        said = f"model = {asked[:64]!r}: there is no such adapter"
        raise ProblemError(404, said, "model_not_found", "model")
    made = set[str]().union(*(job.adapters for job in all_jobs(jobs)))
    for version in versions:
        if f"{name}@{version.name}" not in made:
            raise _not_made(f"{name}@{version.name}")
    for version in versions:
        _remove(version)


def _not_made(adapter: str) -> ProblemError:
    said = "no job of this server has made it; take it out of adapters.directory"
    return ProblemError(403, f"{adapter}: {said}", "not_removable", "model")


def _remove(version: Path) -> None:
    """A file of its name stays: no later job makes another adapter under this number."""
    gone = version.parent.parent / f".{version.parent.name}@{version.name}.partial"
    version.rename(gone)
    version.touch()
    shutil.rmtree(gone, ignore_errors=True)
