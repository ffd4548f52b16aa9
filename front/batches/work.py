"""Answers the batches one after the other, the oldest first, in the process that holds their lock. One that
fails is tried again after the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct
from starlette.responses import Response

from front.batches.answering import Asked, entry_of
from front.batches.pace import TURN_S, Pace
from front.batches.store import CANCEL, ERRORS, INPUT, OUTPUT, Batch, BatchStore, Line, read_requests
from front.files.store import Files
from python_backends.finetuning.files import append_line, append_lines

log = logging.getLogger("gapless.front")

LOOK_EVERY_S = 1.0  # for new batches
WRITE_EVERY_S = 1.0  # how far a batch is
PURPOSE = "batch_output"
EXPIRED = {"code": "batch_expired", "message": "the batch's completion_window was over before its turn came"}


class BatchWork:
    """`answer` is what answers a body, by endpoint."""

    def __init__(
        self, store: BatchStore, files: Files, pace: Pace, answers: dict[str, Callable[[bytes], Response]]
    ) -> None:
        self._store = store
        self._files = files
        self._pace = pace
        self._answers = answers
        self._lock: BinaryIO | None = None
        self._failed: dict[str, str] = {}  # the last error of each

    async def run(self) -> None:
        """Until it is cancelled. What fails is tried again."""
        try:
            while True:
                await self._try("batches", self._look())
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            if self._lock is not None:
                self._lock.close()

    async def _look(self) -> None:
        self._lock = self._lock or self._store.lock()
        if self._lock is None:
            return
        await self._end_waiting()
        tried: set[str] = set()
        while left := [each for each in await asyncio.to_thread(self._store.open) if each.id not in tried]:
            tried.add(left[0].id)
            await self._try(left[0].id, self._answer(left[0]))

    async def _answer(self, batch: Batch) -> None:
        asked = Asked(self._answers[batch.endpoint])
        await _Run(batch, self._store, self._files).go(asked, self._pace, lambda: self._end_waiting(batch.id))

    async def _end_waiting(self, running: str = "") -> None:
        """Ends those that wait and were cancelled, or have expired."""
        for batch in await asyncio.to_thread(self._store.open):
            run = _Run(batch, self._store, self._files)
            if batch.id != running and (status := run.ending()):
                await self._try(batch.id, asyncio.to_thread(run.end, status))

    async def _try(self, name: str, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            if str(error) != self._failed.get(name):
                log.exception("%s can't be answered: %s", name, error)
            self._failed[name] = str(error)


class _Run:
    """One batch from where it stands to its end."""

    def __init__(self, batch: Batch, store: BatchStore, files: Files) -> None:
        self._batch = batch
        self._store = store
        self._files = files
        self._place = store.place(batch)
        self._open: set[asyncio.Task[None]] = set()
        self._written_s = time.monotonic()

    async def go(self, asked: Asked, pace: Pace, watch: Callable[[], Awaitable[None]]) -> None:
        """`watch` is called about once a second."""
        lines = self._left(await asyncio.to_thread(self._answered))
        status = ""
        try:
            while not (status := self.ending()):
                most, is_over = await pace.most(len(self._open)), False
                while len(self._open) < most and not is_over:
                    line = await asyncio.to_thread(next, lines, None)  # it reads over answered ones
                    is_over = line is None
                    if line is not None:
                        self._open.add(asyncio.create_task(self._answer(asked, line)))
                if is_over and not self._open:
                    status = "completed"
                    break
                await self._wait(watch)
        finally:
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
        await asyncio.to_thread(self.end, status)

    def _answered(self) -> set[str]:
        """The custom_id of each request that has an answer, or an error; counts them."""
        completed, failed = (list(_ids_in(self._place / name)) for name in (OUTPUT, ERRORS))
        counts = self._batch.request_counts
        counts.completed, counts.failed = len(completed), len(failed)
        return {*completed, *failed}

    def _left(self, answered: set[str]) -> Iterator[Line]:
        lines = read_requests(self._place / INPUT, self._batch.endpoint)
        return (line for line in lines if line.custom_id not in answered)

    def ending(self) -> str:
        """The status with which it ends now; empty: it goes on."""
        if (self._place / CANCEL).exists():
            return "cancelled"
        return "expired" if time.time() >= (self._batch.expires_at or math.inf) else ""

    async def _wait(self, watch: Callable[[], Awaitable[None]]) -> None:
        """For the next answer, at most TURN_S. Raises what a request has raised."""
        if self._open:
            done, self._open = await asyncio.wait(
                self._open, timeout=TURN_S, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        else:
            await asyncio.sleep(TURN_S)
        if time.monotonic() - self._written_s > WRITE_EVERY_S:
            self._written_s = time.monotonic()
            await asyncio.to_thread(self._store.write, self._batch)
            await watch()

    async def _answer(self, asked: Asked, line: Line) -> None:
        is_answered, entry = await asked.entry(line)
        append_line(self._place / (OUTPUT if is_answered else ERRORS), entry)
        counts = self._batch.request_counts
        counts.completed += is_answered
        counts.failed += not is_answered

    def end(self, status: str) -> None:
        """With this status. If it fails and is tried again, no second file is made of what has one."""
        batch, answered = self._batch, self._answered()
        if status == "expired":
            expired = [entry_of(line, None, EXPIRED) for line in self._left(answered)]
            if expired:
                append_lines(self._place / ERRORS, expired)
            batch.request_counts.failed += len(expired)
        if batch.output_file_id is None:
            batch.output_file_id = self._file(OUTPUT)
            self._store.write(batch)
        if batch.error_file_id is None:
            batch.error_file_id = self._file(ERRORS)
        if status == "cancelled":
            batch.cancelling_at = int((self._place / CANCEL).stat().st_mtime)
        batch.status = status
        setattr(batch, f"{status}_at", int(time.time()))
        self._store.write(batch)

    def _file(self, name: str) -> str | None:
        """What was written becomes a file that clients read; None: nothing was."""
        path = self._place / name
        if not path.exists():
            return None
        with path.open("rb") as lines:
            added = self._files.add(
                f"{self._batch.id}_{name}", PURPOSE, lambda file: shutil.copyfileobj(lines, file)
            )
        return added.id


class _Entry(Struct):
    custom_id: str  # the rest of the line is not kept: all answers together may be larger than the memory


_ENTRY = msgspec.json.Decoder(_Entry)


def _ids_in(path: Path) -> Iterator[str]:
    """The custom_id of each line. A last one that a killed process has cut off is removed."""
    if not path.exists():
        return
    with path.open("rb+") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    yield _ENTRY.decode(line).custom_id
            else:
                lines.truncate(lines.tell() - len(line))
