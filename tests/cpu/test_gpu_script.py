"""The GPU script starts where nothing is installed but what it says that it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_THERE = ("openvino", "tritonclient", "pytest", "hypothesis", "matplotlib", "atheris")


def test_it_imports_nothing_that_a_gpu_machine_may_lack() -> None:
    code = f"import sys\nimport benchmarks.gpu, python_backends.instance\nprint(*set({NOT_THERE}) & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == []


def test_it_explains_itself() -> None:
    said = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert "sortedcontainers, pyzmq and setproctitle" in said.stdout
