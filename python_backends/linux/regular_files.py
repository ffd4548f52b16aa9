"""Reads a file that may be anything: only a regular one of bounded size is read. A pipe or a device would be
waited for without end, and a file with holes takes no place on the disk but all its length in memory.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, most_bytes: int) -> BinaryIO:
    """Raises OSError, and ValueError where it is no regular file or a larger one."""
    _check(path.stat(), most_bytes)  # before it is opened: to open a device may do something
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _check(os.fstat(file.fileno()), most_bytes)  # it may have been replaced by another one
    except ValueError:
        file.close()
        raise
    return file


def read_regular(path: Path, most_bytes: int) -> bytes:
    """All of it, as it is long now. Raises as `open_regular` does."""
    with open_regular(path, most_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def _check(status: os.stat_result, most_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no file")
    if status.st_size > most_bytes:
        raise ValueError(f"it has {status.st_size} bytes: must be at most {most_bytes}")
