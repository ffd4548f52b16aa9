"""Saved states of a job: after which step, with weights and both moments in float32. A saved state is whole
or not there. They are in the job's directory `checkpoints`, as OpenAI calls them.

Kept are the last two, and the last ten of those at the end of a pass over the data; the moments of the last
one alone, from which a job goes on. What a caller saves by name is in `states`: the last 16, with moments.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import save_file

from python_backends.finetuning.files import read_arrays
from python_backends.linux.files import write_directory

NUM_KEPT = 2
NUM_PASSES_KEPT = 10  # with few examples every step ends a pass
NUM_NAMED_KEPT = 16
WEIGHTS, MOMENTS, PLACE = "state.safetensors", "moments.safetensors", "state.json"

State = dict[str, NDArray[Any]]  # weights and moments


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job stands after optimiser step `step`."""

    step: int
    trained_tokens: int
    ends_pass: bool


def save(directory: Path, place: Place, state: State) -> None:
    """Adds a saved state, and deletes those that are not needed any more. OSError where the disk is full."""
    if place.step not in steps(directory):
        _delete(_path(directory, place.step))
        _write(_path(directory, place.step), place, state)
    _delete_old(directory)


def save_named(directory: Path, name: str, place: Place, state: State) -> None:
    """A saved state of that name is replaced, once the new one is written. OSError where the disk is full."""
    new, target = directory / f".{name}", directory / name
    if new.exists() and not target.exists():  # a process was killed before the new one had its name
        new.rename(target)
    shutil.rmtree(new, ignore_errors=True)
    _write(new, place, state)
    if target.exists():
        target.rename(_partial(new))
    new.rename(target)
    found = [path for path in directory.iterdir() if not path.name.startswith(".")]
    for old in sorted(found, key=lambda path: path.stat().st_mtime_ns)[:-NUM_NAMED_KEPT]:
        with suppress(OSError):
            old.rename(directory / f".{old.name}.partial")
    for left in directory.glob(".*.partial"):
        shutil.rmtree(left, ignore_errors=True)


def read_named(directory: Path, name: str) -> tuple[Place, State]:
    """OSError if there is none, ValueError if it can't be read."""
    path, new = directory / name, directory / f".{name}"
    return _read(path if path.exists() or not new.exists() else new)


def _write(target: Path, place: Place, state: State) -> None:
    weights = {key: each for key, each in state.items() if key.endswith(".weight")}
    moments = {key: each for key, each in state.items() if key not in weights}

    def write(path: Path) -> None:
        save_file(weights, path / WEIGHTS)
        if moments:
            save_file(moments, path / MOMENTS)
        (path / PLACE).write_text(json.dumps(asdict(place)) + "\n")

    write_directory(target, write)


def last(directory: Path) -> tuple[Place, State] | None:
    """The newest whole saved state; None: there is none yet."""
    found = steps(directory)
    return read(directory, found[-1]) if found else None


def steps(directory: Path) -> list[int]:
    """After which steps there are whole saved states, in order."""
    return [_step(path) for path in _paths(directory)]


def times(directory: Path) -> dict[int, float]:
    """When each of them was written, in seconds of Unix, by step."""
    found = {}
    for path in _paths(directory):
        with suppress(FileNotFoundError):  # it is deleted meanwhile
            found[_step(path)] = (path / PLACE).stat().st_mtime
    return found


def read(directory: Path, step: int) -> tuple[Place, State]:
    """The saved state after `step`, with moments if it is the last one. OSError if there is none."""
    return _read(_path(directory, step))


def _read(path: Path) -> tuple[Place, State]:
    place, state = _place(path), read_arrays(path / WEIGHTS)
    with suppress(FileNotFoundError):
        state |= read_arrays(path / MOMENTS)
    return place, state


def _paths(directory: Path) -> list[Path]:
    """What is half deleted has no state.json."""
    found = [path.parent for path in directory.glob(f"step-*/{PLACE}")]
    return sorted((path for path in found if path.suffix != ".partial"), key=_step)


def _path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:06d}"


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _place(path: Path) -> Place:
    return Place(**json.loads((path / PLACE).read_text()))


def _delete_old(directory: Path) -> None:
    """What can't be deleted is tried again after the next save."""
    whole = _paths(directory)
    for path in whole[:-1]:
        with suppress(OSError):
            (path / MOMENTS).unlink(missing_ok=True)
    ends = [path for path in whole[:-NUM_KEPT] if _ends_pass(path)]
    for path in set(directory.glob("step-*")) - {*whole[-NUM_KEPT:], *ends[-NUM_PASSES_KEPT:]}:
        _delete(path)


def _ends_pass(path: Path) -> bool:
    """One that can't be read is not needed."""
    try:
        return _place(path).ends_pass
    except (OSError, ValueError, TypeError):
        return False


def _delete(path: Path) -> None:
    """All of it at once, for those that read the directory; what can't be deleted stays."""
    with suppress(OSError):
        path = path if path.suffix == ".partial" else path.rename(_partial(path))
    shutil.rmtree(path, ignore_errors=True)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")
