"""The board: memory in which each process writes its heartbeats and its state, for the launcher and others to
read.

It has one record for each process, in anonymous memory that the launcher makes. All processes that the
launcher starts inherit it, the Python models through tritonserver. It is not a file: a cleaner of temporary
files can't remove it, and a full disk can't prevent writing. The launcher makes one (`Board()`), the other
processes use `Board.inherited()`. Each record has one writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import mmap
import os
import struct
import time
import zlib
from pathlib import Path

VARIABLE = "GAPLESS_BOARD"  # the number of the inherited file descriptor
MAX_INSTANCES = 64
MAX_FRONTS = 16


def instance_name(number: int) -> str:
    """Returns the name of this instance's process on the board and in counts of restarts."""
    return f"instance-{number}"


def front_name(number: int) -> str:
    """Returns the name of this front process on the board and in counts of restarts."""
    return f"{FRONT}-{number}" if number else FRONT


LAUNCHER, FRONT = "launcher", "front"
PROCESSES = (
    *(instance_name(number) for number in range(MAX_INSTANCES)),
    *("tokenizer", "scheduler", "detokenizer", "length_predictor", LAUNCHER),
    *(front_name(number) for number in range(MAX_FRONTS)),
)
RECORD_BYTES = 1 << 20  # only the written part takes memory
NAME = "gapless-board"
ATTEMPTS = 100  # to read a record
LEAST_FD = 64  # a shell keeps its own descriptors below
SIZE_BYTES = RECORD_BYTES * len(PROCESSES)
SIGN = struct.Struct("<Q")
HEAD = struct.Struct("<QII")  # sign of life, length and checksum of the text
MOST_BYTES = RECORD_BYTES - HEAD.size  # of a text


class Board:
    """The shared memory with a record for each process."""

    def __init__(self, fd: int | None = None) -> None:
        """Makes a new board, or opens the one of the file descriptor `fd`."""
        if fd is None:
            made = os.memfd_create(NAME)
            fd = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, LEAST_FD)
            os.close(made)
            os.ftruncate(fd, SIZE_BYTES)
        self.fd = fd
        self._memory = mmap.mmap(fd, SIZE_BYTES)

    @staticmethod
    @functools.cache
    def inherited() -> Board:
        """Returns the launcher's board. In a process that no launcher started, returns a new one, which no
        other process reads.
        """
        with contextlib.suppress(KeyError, ValueError, OSError):
            fd = int(os.environ[VARIABLE])
            if NAME in str(Path(f"/proc/self/fd/{fd}").readlink()):
                return Board(fd)
        return Board()

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    def beat(self, process: str) -> None:
        """Writes a new sign of life, which differs from all before it."""
        SIGN.pack_into(self._memory, _start(process), time.monotonic_ns())

    def sign(self, process: str) -> int:
        """Returns the last sign of life; 0 before the first."""
        return int(SIGN.unpack_from(self._memory, _start(process))[0])

    def write(self, process: str, text: bytes) -> None:
        """Replaces the text of the process's record; also writes a sign of life. Raises ValueError if `text`
        is too long.
        """
        if len(text) > MOST_BYTES:
            raise ValueError(
                f"{process} writes {len(text)} bytes to its record: at most {MOST_BYTES} are allowed"
            )
        record = HEAD.pack(time.monotonic_ns(), len(text), zlib.crc32(text)) + text
        start = _start(process)
        self._memory[start : start + len(record)] = record

    def read(self, process: str) -> bytes:
        """Returns the text of the process's record; empty if it has written none, or died while it wrote."""
        start = _start(process)
        for _ in range(ATTEMPTS):
            _, length, checksum = HEAD.unpack_from(self._memory, start)
            text = self._memory[start + HEAD.size : start + HEAD.size + length]
            if zlib.crc32(text) == checksum:
                return text
            time.sleep(0.001)  # it is being written
        return b""


def _start(process: str) -> int:
    return PROCESSES.index(process) * RECORD_BYTES
