"""Run directories among directories, pipes and links of others: who is
swept, who is not, and that nobody waits.
"""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_backends.launcher import run_directories
from python_backends.launcher.run_directories import (
    MARK,
    OF_KEEPER,
    held,
    in_use,
    parent,
    places,
    remove_shared_memory,
    sweep,
)


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """Of a server whose run directory is called gapless-of-another."""
    path = Path(tempfile.mkstemp(prefix="gapless-of-another-", dir="/dev/shm")[1])
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """A sweep that hangs is killed with a traceback."""
    signal.alarm(20)
    yield
    signal.alarm(0)


def left_behind(directory: Path, name: str) -> Path:
    """By a launcher that was killed."""
    made = directory / name
    made.mkdir(0o700)
    (made / MARK).touch()
    (made / "settings.json").write_text("{}")
    return made


def test_without_a_directory_for_temporary_files_it_is_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused there names it."""

    def refuse() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    assert parent() == Path("/tmp")


def test_what_a_killed_launcher_left_is_swept_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    dead = left_behind(tmp_path, "gapless-dead")
    with held(tmp_path) as mine:
        sweep(tmp_path)
        assert mine.is_dir()
        assert (mine / MARK).is_file()
    assert not dead.exists()
    assert not mine.exists()


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "gapless-x").mkdir()
    os.mkfifo(tmp_path / "gapless-x" / MARK)
    os.mkfifo(tmp_path / "gapless-y")
    sweep(tmp_path)
    assert (tmp_path / "gapless-x" / MARK).exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither one in the place of the directory nor one in the place of its mark."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / MARK).touch()
    parent_directory = tmp_path / "tmp"
    parent_directory.mkdir()
    (parent_directory / "gapless-link").symlink_to(elsewhere)
    (parent_directory / "gapless-mark").mkdir()
    (parent_directory / "gapless-mark" / MARK).symlink_to(elsewhere / MARK)
    sweep(parent_directory)
    assert (elsewhere / MARK).exists()
    assert (parent_directory / "gapless-mark").exists()


def test_directories_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = left_behind(tmp_path, "gapless-theirs")
    monkeypatch.setattr(run_directories.os, "geteuid", lambda: os.getuid() + 1)
    sweep(tmp_path)
    assert theirs.is_dir()


def test_a_directory_of_ones_own_that_only_has_such_a_name_stays(tmp_path: Path) -> None:
    (tmp_path / "gapless-main").mkdir()
    (tmp_path / "gapless-main" / "README.md").touch()
    sweep(tmp_path)
    assert (tmp_path / "gapless-main" / "README.md").exists()


@pytest.mark.parametrize("name", ["gapless-*", "gapless-[a-z]*", "gapless-??-*"])
def test_wildcards_in_a_name_reach_no_shared_memory_of_others(
    tmp_path: Path, shared_memory: Path, name: str
) -> None:
    left_behind(tmp_path, name)
    sweep(tmp_path)
    assert not (tmp_path / name).exists()
    assert shared_memory.exists()
    remove_shared_memory(Path("/run/gapless-of-another"))
    assert not shared_memory.exists()


def test_a_directory_that_is_not_locked_yet_is_not_swept(tmp_path: Path) -> None:
    """Another launcher looks again and again while directories are made and locked."""
    stopping = threading.Event()

    def sweep_on() -> None:
        while not stopping.is_set():
            sweep(tmp_path)

    sweeper = threading.Thread(target=sweep_on)
    sweeper.start()
    try:
        for _ in range(200):
            with held(tmp_path) as mine:
                assert (mine / MARK).is_file()
    finally:
        stopping.set()
        sweeper.join()


def test_the_lock_is_on_the_directory_itself(tmp_path: Path) -> None:
    """systemd-tmpfiles leaves alone what is locked so."""
    with held(tmp_path) as mine:
        directory = os.open(mine, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(directory)


def test_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's own, or /run, or the one for temporary files. A longer name of this test
    makes `tmp_path` too long for sockets.
    """
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(run_directories.os, "geteuid", lambda: 1000)
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    assert parent() == tmp_path
    (tmp_path / "service").mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{tmp_path}/service:/other")
    assert parent() == tmp_path / "service"
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "missing"))
    assert parent() == tmp_path


def test_a_place_whose_name_is_too_long_for_sockets_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(long))
    monkeypatch.setattr(run_directories.os, "geteuid", lambda: 1000)
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    assert parent() == Path("/tmp")


def test_files_get_the_present_time(tmp_path: Path) -> None:
    with held(tmp_path) as mine:
        assert abs((mine / MARK).stat().st_mtime - time.time()) < 60


def test_only_directories_that_a_launcher_holds_are_servers(tmp_path: Path) -> None:
    with held(tmp_path) as mine, held(tmp_path, OF_KEEPER) as of_keeper:
        assert in_use(str(tmp_path)) == [mine]
        sweep(tmp_path)
        assert of_keeper.is_dir()
    assert in_use(str(tmp_path)) == []


def test_a_server_that_systemd_started_is_found_without_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    assert {"/run/*", "/tmp"} <= set(places())
    (tmp_path / "service").mkdir()
    with held(tmp_path / "service") as mine:
        assert in_use(f"{tmp_path}/*", f"{tmp_path}/service") == [mine]
