"""The front as a process: where it listens, when it is healthy, what it imports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from front.__main__ import where_to_listen
from front.health import is_healthy
from front.keys import Keys
from front.model import Model
from python_backends.launcher.readiness import Readiness
from python_backends.settings import ROOT, ModelSettings, ServerSettings, Settings
from python_backends.watching.board import Board
from python_backends.watching.instance_state import InstanceRecord, State
from python_backends.watching.launcher_record import LauncherRecord


@pytest.mark.parametrize(
    ("address", "key", "expected"),
    [
        ("0.0.0.0", b"", "127.0.0.1"),
        ("0.0.0.0", b"x", "0.0.0.0"),
        ("10.1.2.3", b"", "127.0.0.1"),
        ("localhost", b"", "127.0.0.1"),
        ("::1", b"", "::1"),
    ],
)
def test_without_a_key_only_this_host_is_served(address: str, key: bytes, expected: str) -> None:
    keys = Keys([key] if key else [])
    assert where_to_listen(Settings(server=ServerSettings(address=address)), keys) == expected


def test_health_needs_the_launchers_word_a_ready_instance_and_no_drain(model: Path, tmp_path: Path) -> None:
    board = Board()
    served = Model(Settings(model=ModelSettings(directory=str(model))), board)
    assert not is_healthy(tmp_path, 8000, served)
    Readiness(tmp_path, 8000).say(True)
    assert not is_healthy(tmp_path, 8000, served), "no instance"
    InstanceRecord(board, 0).write(State.READY)
    assert is_healthy(tmp_path, 8000, served)
    old = time.time() - 10
    os.utime(tmp_path / "ready-8000", (old, old))
    assert not is_healthy(tmp_path, 8000, served), "the launcher is silent"
    Readiness(tmp_path, 8000).say(True)
    LauncherRecord(board, ()).drain()
    assert not is_healthy(tmp_path, 8000, served)
    board.close()


def test_it_brings_no_torch_along() -> None:
    code = "import sys, front.__main__; assert not {'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
