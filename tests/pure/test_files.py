"""Files and directories that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backends.linux.files import replace_file, write_directory, write_whole


def fill_the_disk(path: Path) -> None:
    (path / "part" if path.is_dir() else path).write_text("the first par")
    raise OSError("no space left on device")


def test_a_file_keeps_its_old_content_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "forest-1.npz"
    write_whole(path, "old")
    with pytest.raises(OSError, match="no space left"):
        replace_file(path, fill_the_disk)
    assert path.read_text() == "old"
    write_whole(path, b"new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_is_absent_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "adapter"
    with pytest.raises(OSError, match="no space left"):
        write_directory(path, fill_the_disk)
    assert not path.exists()
    write_directory(path, lambda written: write_whole(written / "config.json", "{}"))
    assert [file.name for file in path.iterdir()] == ["config.json"]
