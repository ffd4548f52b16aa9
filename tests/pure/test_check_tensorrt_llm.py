"""The script that checks a real TensorRT-LLM, run against the stand-in: it
passes, and it fails where a promise does not hold.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorrt_llm.manners import manners

from build.tensorrt_checks import __main__ as check_tensorrt_llm
from build.tensorrt_checks import checks

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, path: str = "tests/standin") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "build.tensorrt_checks", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def slow() -> Iterator[None]:
    manners.step_ms = 3
    yield
    manners.step_ms, manners.hears_aborts, manners.keeps_stop_ids = 0, True, True


def test_every_promise_holds_of_the_stand_in() -> None:
    done = run("--slots", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = [line[:4] for line in done.stdout.splitlines()]
    assert set(verdicts) == {"ok  ", "note"}
    assert verdicts.count("ok  ") >= 25


def test_a_promise_that_does_not_hold_is_a_failure(
    slow: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "SOON_S", 1.0)
    settings = check_tensorrt_llm.usual_settings(check_tensorrt_llm.arguments([]), tmp_path)
    monkeypatch.setattr("python_backends.engine.tensorrt_llm.request_loop.LOST_AFTER_S", 0.4)
    assert check_tensorrt_llm.run_checks(settings, [checks.cancelling])
    manners.hears_aborts = False
    assert not check_tensorrt_llm.run_checks(settings, [checks.cancelling])
    said = capsys.readouterr().out
    assert re.search("^FAIL .*cancelled.*: did not happen within 1 s$", said, re.MULTILINE), said


def test_without_tensorrt_llm_it_says_so_and_fails(tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm.py").write_text("raise ImportError('libnvinfer is missing')")
    done = run(path=str(tmp_path))
    assert done.returncode == 1
    assert "FAIL tensorrt_llm can't be imported: libnvinfer is missing" in done.stdout


def test_help_tells_what_it_needs() -> None:
    text = run("--help").stdout
    assert "needs tensorrt_llm" in text
    assert "--tensor-parallelism" in text
