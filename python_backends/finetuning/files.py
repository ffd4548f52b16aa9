"""Files that are whole or absent, whenever the process is killed or the machine stops.

Tested in tests/cpu/test_finetuning.py.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """The file has either its old content or `text`."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    sync(path.parent)


def write_directory(path: Path, write: Callable[[Path], None]) -> None:
    """The directory is absent, or has all that `write` puts into it."""
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    for file in partial.iterdir():
        sync(file)
    sync(partial)
    partial.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; the last one may have been cut off, and is left out then."""
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
