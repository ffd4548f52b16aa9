"""The front as a process: when it is healthy, what it imports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from client.channel import VARIABLES
from front.health import is_healthy
from front.model import Model
from python_backends.launcher.companion import ENVIRONMENT
from python_backends.launcher.readiness import Readiness
from python_backends.settings import ROOT, ModelSettings, Settings
from python_backends.watching.board import Board
from python_backends.watching.instance_state import InstanceRecord, State
from python_backends.watching.launcher_record import LauncherRecord


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


def test_it_asks_through_no_proxy(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from client.channel import VARIABLES;"
        " from front.__main__ import main; main(Path(sys.argv[1]));"
        " sys.exit(any(name in os.environ for name in VARIABLES))"
    )
    environment = {**os.environ, **dict.fromkeys(VARIABLES, "http://127.0.0.1:1")}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True, cwd=ROOT)


def test_grpc_knows_the_experiment_that_the_front_does_without() -> None:
    code = "import grpc; grpc.insecure_channel('127.0.0.1:1').close()"

    def said(experiments: str) -> str:
        environment = {**os.environ, "GRPC_EXPERIMENTS": experiments}
        found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        return found.stderr.decode()

    assert "Unknown experiment" in said("-no_such"), "it says so"
    assert "Unknown experiment" not in said(ENVIRONMENT["GRPC_EXPERIMENTS"])
