"""`build.compile_kernels` compiles every kernel for a GPU that is not here, and finds those that spill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = "the package triton is not installed: build/set-up dev kernels brings it (700 MB)"


def compiled(*asked: str) -> subprocess.CompletedProcess[str]:
    """What it says: the compiler, not the interpreter."""
    pytest.importorskip("triton.language", reason=WITHOUT)
    command = [sys.executable, "-m", "build.compile_kernels", *asked]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=280, check=False
    )


def test_every_kernel_compiles_for_a_gpu_that_is_not_here_and_spills_are_found(tmp_path: Path) -> None:
    """float32 as well, whose chunks spilled 14 KB a thread when their tiles were those of bfloat16."""
    found = tmp_path / "kernels.json"
    said = compiled("--quick", "--json", str(found))
    assert said.returncode == 0, said.stdout + said.stderr
    kernels = json.loads(found.read_text())["kernels"]
    names = {
        "attend_part",
        "attend_chunk",
        "divide",
        "last_tokens",
        "append",
        "int8_product",
        "expert_product",
        "place",
        "gated",
        "add_and_norm",
        "draw",
        "write",
    }
    assert {kernel["kernel"] for kernel in kernels} == names
    assert {kernel["what"][:4] for kernel in kernels if kernel["kernel"] == "attend_chunk"} == {
        "bf16",
        "fp32",
    }
    assert all(kernel["registers"] > 0 and kernel["spilled_bytes"] == 0 for kernel in kernels)
    refused = compiled("--quick", "--most-spills", "-1")
    assert refused.returncode == 1
    assert "FAIL: spills more than -1 bytes" in refused.stdout
