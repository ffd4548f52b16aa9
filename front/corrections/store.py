"""Corrections on the disk, each in a file of its own. Only this user may read them."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
from msgspec import Struct

from front.errors import ProblemError
from python_backends.linux.files import locked_file, write_private

MOST = 1000
HELD_OUT_SHARE = 4  # one in so many is held out
ID = re.compile(r"correction-[0-9a-f]{24}")
S = TypeVar("S", bound=Struct)


class Correction(Struct, kw_only=True):
    """`example` is a line of training data. Times are seconds of Unix."""

    id: str
    object: str = "correction"
    created_at: int
    held_out: bool
    example: dict[str, Any]


class Learned(Struct):
    """The latest job of corrections has all that were made before `before`, in seconds of Unix."""

    job: str
    before: int


class Corrections:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._learned = directory / "learned.json"

    def add(self, prompt: Any, example: dict[str, Any]) -> Correction:
        """`prompt`: of the example. An earlier correction of the same one is replaced, and stays held out if
        it was. Raises ProblemError where there are too many, and OSError.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"correction-{hashlib.sha256(msgspec.json.encode(prompt)).hexdigest()[:24]}"
        known = {each.id: each.held_out for each in self.all()}
        if name not in known and len(known) >= MOST:
            said = f"there are {MOST} corrections, the most there can be: delete some"
            raise ProblemError(400, said, "full")
        held_out = known.get(name, HELD_OUT_SHARE * sum(known.values()) < len(known))
        made = Correction(id=name, created_at=int(time.time()), held_out=held_out, example=example)
        write_private(self._path(name), msgspec.json.encode(made))
        return made

    def all(self) -> list[Correction]:
        """The newest first."""
        found = [
            each for path in self.directory.glob("correction-*.json") if (each := _read(path, Correction))
        ]
        return sorted(found, key=lambda each: (each.created_at, each.id), reverse=True)

    def delete(self, name: str) -> None:
        """Raises ProblemError."""
        try:
            if ID.fullmatch(name):
                return self._path(name).unlink()
        except FileNotFoundError:
            pass
        raise ProblemError(404, f"{name[:64]!r}: there is no such correction", "not_found")

    def learned(self) -> Learned | None:
        """None: there was no job yet, or what was noted of it can't be read."""
        return _read(self._learned, Learned)

    def note(self, learned: Learned) -> None:
        """Raises OSError."""
        write_private(self._learned, msgspec.json.encode(learned))

    def lock(self) -> BinaryIO | None:
        """Of the process that learns them. None: another one has it, or there is no correction."""
        return locked_file(self.directory / "lock") if self.directory.is_dir() else None

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"


def _read(path: Path, kind: type[S]) -> S | None:
    """None: it can't be read, or is gone."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None
