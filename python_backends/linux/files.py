"""Files that are whole or absent, whenever the process is killed or the machine stops."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: str | bytes) -> None:
    """The file has either its old content or `content`. Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    replace_file(path, lambda written: written.write_bytes(data))


def write_private(path: Path, content: bytes) -> None:
    """As `write_whole`; this user alone may read it."""

    def write(written: Path) -> None:
        written.touch(0o600)
        written.write_bytes(content)

    replace_file(path, write)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """The file has either its old content or what `write` puts into the path it is given. Raises OSError, and
    what `write` raises.
    """
    partial = _partial(path)
    write(partial)
    sync(partial)
    partial.replace(path)
    sync(path.parent)


def write_directory(path: Path, write: Callable[[Path], None]) -> None:
    """The directory is absent, or has all that `write` puts into it."""
    partial = _partial(path)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    for file in partial.iterdir():
        sync(file)
    sync(partial)
    partial.rename(path)
    sync(path.parent)


def locked_file(path: Path) -> BinaryIO | None:
    """Locked until it is closed or this process ends. None: another process has it. Raises OSError."""
    file = path.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def nearest(path: Path) -> Path:
    """Returns the path, or the first of its parents that exists. What may not be looked at does not."""
    return next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110


def is_writable(directory: Path) -> bool:
    """Whether files can be made in it, or it can be made."""
    found = nearest(directory)
    return found.is_dir() and os.access(found, os.W_OK | os.X_OK)


def sync(path: Path) -> None:
    """What was written to the file or directory is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")
