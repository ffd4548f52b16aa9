"""Only regular files of bounded size are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from python_backends.linux.regular_files import read_regular


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(ValueError, match="it has 5 bytes: must be at most 4"):
        read_regular(path, 4)


def test_what_is_no_file_is_neither_waited_for_nor_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="it is no file"):
            read_regular(path, 10)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing", 10)


def test_a_file_with_holes_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="must be at most 1000"):
        read_regular(tmp_path / "holes", 1000)
