"""The wheel that `pip install .` builds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from python_backends.settings import ROOT

LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", ".perf", ".gpu-wheels", "__pycache__", "*.egg-info")


def copied(place: Path) -> Path:
    """Returns what a wheel is built from, copied into a folder of `place`."""
    left_out = shutil.ignore_patterns(*LEFT_OUT, "docs", "run", "tests", "benchmarks")
    return Path(shutil.copytree(ROOT, place / "source", ignore=left_out))


def built(place: Path, compiler: str = "no-such-compiler") -> Path:
    """Without the network: setuptools is in the environment. `place` is an empty folder. `compiler`: of the
    layers in C++.
    """
    source, made = copied(place), place / "made"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(made), str(source)],
        env={**os.environ, "CXX": compiler},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (source / "build/lib").exists(), "build/ has other things"
    (wheel,) = made.glob("*.whl")
    return wheel
