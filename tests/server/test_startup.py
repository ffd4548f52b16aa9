"""`gapless bench startup` over a real server: launcher and instance say where the time of a start went."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from commands.startup import OTHER
from python_backends.settings import ROOT
from tests.support.server.serving import BUSY

LAUNCHER = {"imports", "settings", "finding the model", "tritonserver", "the front", "first token", OTHER}
INSTANCE = ("imports", "tokenizer", "reading weights", "engine", "first steps", "wires")


def test_the_phases_of_a_start_are_told(tmp_path: Path) -> None:
    path = tmp_path / "startup.json"
    words = ("bundled", "--rounds", "1", "--json", str(path), "--set", "prediction.enabled=false")
    done = subprocess.run(
        [sys.executable, "-m", "commands", "bench", "startup", *words],
        cwd=ROOT,
        env={name: text for name, text in os.environ.items() if not name.startswith("GAPLESS_")},
        capture_output=True,
        text=True,
        timeout=120 * BUSY,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (phases,) = json.loads(path.read_text())["rounds"]
    assert LAUNCHER | {f"instance: {name}" for name in INSTANCE} <= phases.keys()
    assert f"{sum(phases.values()):.2f}" in done.stdout
