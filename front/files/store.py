"""The files as they lie on the disk: each in a directory of its own, which is there whole or not at all.

All front processes see the same ones. Only this user may read them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from front.errors import ProblemError
from python_backends.linux.files import sync

MOST_FILES = 1000
MOST_BYTES = 128 << 20  # of one file
MOST_BYTES_OF_ALL = 4 << 30
PARTIAL = ".partial"
FORGOTTEN_S = 86_400.0  # after which a partial one belongs to an upload that was killed
ID = re.compile(r"file-[0-9a-f]{24}")
ABOUT = "file.json"


class File(Struct, kw_only=True):
    """As OpenAI's clients see it. Times are seconds of Unix."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: str = "processed"
    status_details: str | None = None


@dataclass(slots=True)
class Written:
    """A file that is being written. `left_bytes`: what all files together may still have."""

    directory: Path
    file: BinaryIO
    left_bytes: int

    @property
    def most_bytes(self) -> int:
        return max(0, min(MOST_BYTES, self.left_bytes))

    @property
    def limit(self) -> str:
        reason = f": all files may have {MOST_BYTES_OF_ALL}" if self.left_bytes < MOST_BYTES else ""
        return f"{self.most_bytes} bytes{reason}"


class Files:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, is_limited: bool = True) -> Written:
        """Raises ProblemError where there are too many, OSError where none can be written."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove_forgotten()
        if is_limited and len(list(self._directory.glob("file-*"))) >= MOST_FILES:
            raise ProblemError(
                400, f"there are {MOST_FILES} files, the most there can be: delete some", "full"
            )
        left = MOST_BYTES_OF_ALL - self._num_bytes()
        file_id = f"file-{secrets.token_hex(12)}"
        directory = self._directory / f"{file_id}{PARTIAL}"
        directory.mkdir(mode=0o700)
        number = os.open(directory / file_id, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        return Written(directory, os.fdopen(number, "wb"), left)

    def end(self, written: Written, name: str, purpose: str, is_limited: bool = True) -> File:
        """The file is there from now on. Raises ProblemError where all have too many bytes now, by others
        that came at the same time.
        """
        file_id = written.directory.name.removesuffix(PARTIAL)
        written.file.close()
        if is_limited and self._num_bytes() > MOST_BYTES_OF_ALL:
            said = f"file: all files may have {MOST_BYTES_OF_ALL} bytes, with those that are being uploaded"
            raise ProblemError(413, said, "file_too_large", "file")
        content = written.directory / file_id
        file = File(
            id=file_id,
            bytes=content.stat().st_size,
            created_at=int(time.time()),
            filename=name,
            purpose=purpose,
        )
        about = written.directory / ABOUT
        about.touch(0o600)
        about.write_bytes(msgspec.json.encode(file))
        for path in (content, about, written.directory):
            sync(path)
        written.directory.rename(self._directory / file_id)
        sync(self._directory)
        return file

    def drop(self, written: Written) -> None:
        """It was not written to its end."""
        written.file.close()
        shutil.rmtree(written.directory, ignore_errors=True)

    def add(self, name: str, purpose: str, write: Callable[[BinaryIO], object]) -> File:
        """Returns the file that `write` has filled. It is the server's own, so no limit holds it up. Raises
        OSError, and what `write` raises.
        """
        written = self.begin(is_limited=False)
        try:
            write(written.file)
            return self.end(written, name, purpose, is_limited=False)
        except BaseException:
            self.drop(written)
            raise

    def all(self) -> list[File]:
        """The newest first."""
        found = [file for path in self._directory.glob("file-*") if (file := self._read(path.name))]
        return sorted(found, key=lambda file: (file.created_at, file.id), reverse=True)

    def find(self, file_id: str, param: str | None = None) -> File:
        """Raises ProblemError. `param`: the field that names it."""
        file = self._read(file_id)
        if file is None:
            place = f"{param} = " if param else ""
            raise ProblemError(404, f"{place}{file_id[:64]!r}: there is no such file", "not_found", param)
        return file

    def path(self, file_id: str) -> Path:
        """Of the content of a file that `find` has found."""
        return self._directory / file_id / file_id

    def delete(self, file_id: str) -> None:
        """Raises ProblemError."""
        self.find(file_id)
        gone = self._directory / f"{file_id}{PARTIAL}"
        (self._directory / file_id).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _num_bytes(self) -> int:
        """Of all files, with what those that are being written have so far."""
        sizes = {}
        for path in self._directory.glob(f"file-*{PARTIAL}"):
            file_id = path.name.removesuffix(PARTIAL)
            with contextlib.suppress(FileNotFoundError):
                sizes[file_id] = (path / file_id).stat().st_size
        # the whole ones last: one that is finished meanwhile counts, once
        return sum((sizes | {file.id: file.bytes for file in self.all()}).values())

    def _read(self, file_id: str) -> File | None:
        """None: there is none, or its description can't be read."""
        if not ID.fullmatch(file_id):
            return None
        try:
            return msgspec.json.decode((self._directory / file_id / ABOUT).read_bytes(), type=File)
        except (OSError, msgspec.DecodeError):
            return None

    def _remove_forgotten(self) -> None:
        for path in self._directory.glob(f"file-*{PARTIAL}"):
            try:
                is_old = time.time() - path.stat().st_mtime > FORGOTTEN_S
            except FileNotFoundError:
                continue
            if is_old:
                shutil.rmtree(path, ignore_errors=True)
