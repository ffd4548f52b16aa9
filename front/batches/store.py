"""Batches on the disk: each in a directory with its description, its requests and the answers so far."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from front.errors import ProblemError
from python_backends.linux.files import locked_file, write_directory, write_whole

ID = re.compile(r"batch_[0-9a-f]{24}")
MOST_BATCHES = 1000
MOST_LINE_BYTES = 4 << 20
ENDED = frozenset({"completed", "cancelled", "expired", "failed"})
ABOUT, INPUT, OUTPUT, ERRORS, CANCEL = "batch.json", "input.jsonl", "output.jsonl", "errors.jsonl", "cancel"


class Counts(Struct, kw_only=True):
    total: int
    completed: int = 0
    failed: int = 0


class Batch(Struct, kw_only=True):
    """As OpenAI's clients see it. Times are seconds of Unix."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: None = None
    input_file_id: str
    completion_window: str
    status: str = "in_progress"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts
    metadata: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One request. `body` is a JSON object, except that its UTF-8 and its numbers are not checked."""

    custom_id: str
    body: msgspec.Raw


class BatchStore:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ended: set[str] = set()  # ids of those that were seen to have ended: they change no more

    def place(self, batch: Batch) -> Path:
        return self._directory / batch.id

    def create(self, content: Path, hours: int, **fields: Any) -> Batch:
        """`content`: the requests; the file may be deleted afterwards. It expires after `hours`.
        Raises ProblemError and OSError.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room()
        now = int(time.time())
        batch = Batch(
            id=f"batch_{secrets.token_hex(12)}",
            created_at=now,
            in_progress_at=now,
            expires_at=now + 3600 * hours,
            **fields,
        )

        def write(directory: Path) -> None:
            try:
                os.link(content, directory / INPUT)
            except OSError:  # not every file system has links
                shutil.copyfile(content, directory / INPUT)
            (directory / ABOUT).write_bytes(msgspec.json.encode(batch))

        write_directory(self.place(batch), write)
        return batch

    def write(self, batch: Batch) -> None:
        write_whole(self.place(batch) / ABOUT, msgspec.json.encode(batch))

    def all(self) -> list[Batch]:
        """The newest first."""
        return self._read_all(self._ids())[::-1]

    def open(self) -> list[Batch]:
        """Those that have not ended, the oldest first; asked by the process that has the lock. Each that has
        is read once, and keeps its description: what it has answered is in files of clients.
        """
        ids = self._ids()
        self._ended &= ids
        found = self._read_all(ids - self._ended)
        for batch in found:
            if batch.status in ENDED:
                self._ended.add(batch.id)
                for name in (INPUT, OUTPUT, ERRORS):
                    with contextlib.suppress(OSError):
                        (self.place(batch) / name).unlink()
        return [batch for batch in found if batch.status not in ENDED]

    def find(self, batch_id: str) -> Batch:
        """Raises ProblemError."""
        if (batch := self._read(batch_id)) is None:
            raise ProblemError(404, f"{batch_id[:64]!r}: there is no such batch", "not_found")
        return batch

    def cancel(self, batch_id: str) -> Batch:
        """The process that answers it ends it. Raises ProblemError."""
        batch = self.find(batch_id)
        if batch.status in ENDED:
            raise ProblemError(400, f"{batch.id}: it has ended already ({batch.status})", "batch_has_ended")
        (self.place(batch) / CANCEL).touch()
        return self.find(batch_id)

    def lock(self) -> BinaryIO | None:
        """None: another process has it, or there is no batch. The lock goes with the file, or the process."""
        return locked_file(self._directory / "lock") if self._directory.is_dir() else None

    def _make_room(self) -> None:
        """For one more: the oldest that have ended go. Raises ProblemError if there are none."""
        num_too_many = len(self._ids()) - MOST_BATCHES + 1
        if num_too_many <= 0:
            return
        ended = [batch for batch in reversed(self.all()) if batch.status in ENDED][:num_too_many]
        for batch in ended:
            shutil.rmtree(self.place(batch), ignore_errors=True)
        if len(ended) < num_too_many:
            said = f"there are {MOST_BATCHES} batches that have not ended, the most there can be"
            raise ProblemError(400, f"{said}: cancel one, or try again later", "full")

    def _ids(self) -> set[str]:
        if not self._directory.is_dir():
            return set()
        return {path.name for path in self._directory.iterdir() if ID.fullmatch(path.name)}

    def _read_all(self, ids: Iterable[str]) -> list[Batch]:
        """The oldest first."""
        found = [batch for each in ids if (batch := self._read(each))]
        return sorted(found, key=lambda batch: (batch.created_at, batch.id))

    def _read(self, batch_id: str) -> Batch | None:
        if not ID.fullmatch(batch_id):
            return None
        path = self._directory / batch_id
        try:
            batch = msgspec.json.decode((path / ABOUT).read_bytes(), type=Batch)
            asked = (path / CANCEL).stat().st_mtime if (path / CANCEL).exists() else None
        except (OSError, msgspec.DecodeError):
            return None
        if asked is not None and batch.status not in ENDED:
            batch.status, batch.cancelling_at = "cancelling", int(asked)
        return batch


class _Given(Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_GIVEN = msgspec.json.Decoder(_Given)


def read_requests(path: Path, endpoint: str) -> Iterator[Line]:
    """Raises ValueError, which names the line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield _line(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, endpoint)
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"line {number}: {error}") from None


def _line(line: bytes, endpoint: str) -> Line:
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"it must have at most {MOST_LINE_BYTES} bytes")
    given = _GIVEN.decode(line)
    if not 1 <= len(given.custom_id) <= 512:
        raise ValueError("custom_id: must have 1 to 512 characters")
    if given.method != "POST":
        raise ValueError(f"method = {given.method[:40]!r}: must be POST")
    if given.url != endpoint:
        raise ValueError(f"url = {given.url[:80]!r}: must be {endpoint}, the endpoint of the batch")
    if not bytes(given.body).lstrip().startswith(b"{"):
        raise ValueError("body: must be a JSON object")
    return Line(given.custom_id, given.body)
