"""What the launcher keeps in the run directory: it survives cleaners, and a full disk ends nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from python_backends.launcher.readiness import Readiness
from python_backends.launcher.run_files import KEEP_EVERY_S, RunFiles
from python_backends.settings import Settings, read_settings
from python_backends.wires.run_directory import KEY, MARK, SETTINGS

ROOT = Path(__file__).resolve().parents[2]


def test_what_was_removed_or_cut_off_is_written_again(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, Settings())
    key = (tmp_path / KEY).read_bytes()
    assert len(key) == 32
    (tmp_path / KEY).unlink()
    (tmp_path / SETTINGS).write_text("")
    files.keep()
    assert (tmp_path / KEY).read_bytes() == key
    assert read_settings(tmp_path / SETTINGS) == Settings()
    assert (tmp_path / MARK).is_file()


def test_all_files_get_the_present_time_so_that_cleaners_leave_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(tmp_path, Settings())
    (tmp_path / "backends/python").mkdir(parents=True)
    (tmp_path / "backends/python/stub").symlink_to("/nowhere")
    (tmp_path / "socket").touch()
    paths = [tmp_path, *tmp_path.rglob("*")]
    for path in paths:
        os.utime(path, (1e6, 1e6), follow_symlinks=False)
    files.keep_if_due()
    assert (tmp_path / KEY).stat().st_mtime == 1e6, "it is not due yet"
    started_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: started_s + KEEP_EVERY_S + 1)
    files.keep_if_due()
    assert all(path.lstat().st_mtime > time.time() - 60 for path in paths)
    assert all(path.lstat().st_atime > time.time() - 60 for path in paths)


FULL_DISK = """
import logging, resource, subprocess, sys, time
from pathlib import Path
from python_backends.watching.board import Board
from python_backends.settings import load
from python_backends.watching.instance_state import InstanceRecord, State
from python_backends.watching.launcher_record import LauncherRecord
from python_backends.launcher.instance_process import InstanceProcess
from python_backends.launcher.fleets.local import LocalFleet
from python_backends.launcher.run_files import RunFiles
logging.basicConfig(stream=sys.stdout, format="%(message)s")
directory = Path(sys.argv[1])
files, board = RunFiles(directory, load(Path("gapless.toml"))), Board()
InstanceRecord(board, 0).write(State.READY)
settings = load(Path("gapless.toml"))
child = LocalFleet(settings, directory, board, None).child(0)
child._command = ["true"]  # it ends at once
record = LauncherRecord(board, ("instance-0",))
instance = InstanceProcess(settings, files, record, 0, child)
instance.start()
while not instance.has_ended():
    time.sleep(0.01)
InstanceRecord(board, 0).write(State.READY)  # it had been ready before
(directory / "key").unlink()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a full disk, each write fails
instance.heal()
instance.stop(0)
print("healed")
"""


def test_a_full_disk_does_not_keep_an_instance_from_being_started_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "instance 0 ended with 0; starting it again" in done.stdout
    assert "key can't be written again" in done.stdout
    assert done.stdout.endswith("healed\n")


def test_the_file_of_readiness_is_there_while_it_is_ready_and_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readiness, path = Readiness(tmp_path, 8000), tmp_path / "ready-8000"
    readiness.say(True)
    assert path.is_file()
    readiness.say(False)
    assert not path.exists()
    readiness.say(True)
    path.unlink()
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 3)
    readiness.say(True)
    assert path.is_file()
    missing = Readiness(tmp_path / "nowhere", 8000)
    missing.say(True)
    missing.say(False)
