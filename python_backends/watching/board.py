"""The board: memory in which each process says that it lives, and the launcher reads it.

One record for every process, in anonymous memory that the launcher makes and that everything it starts
inherits, the Python models through tritonserver. It is no file: a cleaner of temporary files can't remove it,
and a full disk can't keep anybody from writing. The launcher makes one (`Board()`), the others find theirs
(`Board.inherited()`). Each record has one writer.
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


def instance_name(number: int) -> str:
    """Of the process of this instance, on the board and in counts of restarts."""
    return f"instance-{number}"


PROCESSES = (
    *(instance_name(number) for number in range(MAX_INSTANCES)),
    *("tokenizer", "scheduler", "detokenizer", "length_predictor"),
)
RECORD_BYTES = 1 << 20  # only what is written takes memory
NAME = "gapless-board"
ATTEMPTS = 100  # to read a record
LEAST_FD = 64  # a shell keeps its own descriptors below
SIZE_BYTES = RECORD_BYTES * len(PROCESSES)
SIGN = struct.Struct("<Q")
HEAD = struct.Struct("<QII")  # sign of life, length and checksum of the text


class Board:
    def __init__(self, fd: int | None = None) -> None:
        """A new one, or the one behind `fd`."""
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
        """The launcher's; one of our own, which no other process reads,
        in a process that no launcher started.
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
        """A sign of life of this process, which differs from all before it."""
        SIGN.pack_into(self._memory, _start(process), time.monotonic_ns())

    def sign(self, process: str) -> int:
        """The last sign of life; 0 before the first."""
        return int(SIGN.unpack_from(self._memory, _start(process))[0])

    def write(self, process: str, text: bytes) -> None:
        """Replaces what the process says of itself; a sign of life,
        too. Raises ValueError if it is too long.
        """
        most = RECORD_BYTES - HEAD.size
        if len(text) > most:
            raise ValueError(f"{process} says {len(text)} bytes of itself; at most {most} fit")
        record = HEAD.pack(time.monotonic_ns(), len(text), zlib.crc32(text)) + text
        start = _start(process)
        self._memory[start : start + len(record)] = record

    def read(self, process: str) -> bytes:
        """What it says of itself; empty if it has said nothing, or died while it wrote."""
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
