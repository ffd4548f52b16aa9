"""The GPU script starts where nothing is installed but what it says that it needs, runs as a whole without a
GPU, and one part's failure leaves the others alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.common.recorded_engine import RecordedEngine
from benchmarks.gpu import parts
from benchmarks.gpu.model import Measured
from benchmarks.gpu.report import Figure, table
from benchmarks.gpu.steps import weight_bytes
from tests.support.tiny_models import TinyModel

ROOT = Path(__file__).resolve().parents[2]
NOT_THERE = ("tritonclient", "pytest", "hypothesis", "matplotlib", "atheris")
MEASURED = Measured(Path(), "cpu", quick=True)


def test_it_imports_nothing_that_a_gpu_machine_may_lack() -> None:
    code = (
        "import sys, benchmarks.gpu.__main__, python_backends.instance.loop\n"
        f"print(*set({NOT_THERE}) & sys.modules.keys())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert found.stdout.split() == []


def test_it_runs_without_a_gpu(tmp_path: Path) -> None:
    """All parts but three that other tests and benchmarks run: the checks
    of tokens, Triton, and transformers' loop.
    """
    path, asked = tmp_path / "gpu.json", ("steps", "gap", "copies", "online", "finetune", "moves")
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--device",
        "cpu",
        "--quick",
        "--only",
        ",".join(asked),
        "--json",
        str(path),
    ]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    result = json.loads(path.read_text())
    assert {part["part"]: part["error"] for part in result["parts"]} == dict.fromkeys(
        ("capture, cuda_graphs = eager", *asked), ""
    )
    values = {figure["what"]: figure["value"] for figure in result["figures"]}
    assert values["24/12 at once: output"] > 0
    assert 0 < values["busy share, all steps"] <= 1
    assert values["ours alone, keep = products"] > 0
    assert values["decodes of 4 slots, SLO 200 ms: P99 between tokens"] > 0
    assert values["tokens of a moved request that are those without a move"] == 1
    assert "| steps | decode step of 4 slots over its floor |" in said.stdout


def _figures(_measured: Measured) -> Iterator[Figure]:
    yield Figure("good", "the answer", 42, "", ">= 42")


def _breaks(_measured: Measured) -> Iterator[Figure]:
    yield from _figures(_measured)
    raise ZeroDivisionError("on purpose")


def _dies(_measured: Measured) -> Iterator[Figure]:
    yield from _figures(_measured)
    sys.stdout.flush()
    __import__("os")._exit(7)


def _sleeps(_measured: Measured) -> Iterator[Figure]:
    time.sleep(60)
    yield from ()


@pytest.mark.parametrize(
    ("part", "error"),
    [(_breaks, "ZeroDivisionError: on purpose"), (_dies, "ended with 7"), (_sleeps, "longer than 1 s")],
)
def test_a_part_that_fails_is_named_and_what_it_had_found_stays(
    monkeypatch: pytest.MonkeyPatch, part: parts.Part, error: str
) -> None:
    monkeypatch.setitem(parts.PARTS, "bad", (part, 1.0))
    figures: list[Figure] = []
    ended = parts.guarded("bad", MEASURED, figures, 30.0 if part is not _sleeps else 1.0)
    assert error in ended.error
    assert [figure.verdict for figure in figures] == (["ok"] if part is not _sleeps else [])
    assert "| FAIL |" in table(figures, [ended])


def test_the_floor_counts_what_a_step_reads(one: TinyModel) -> None:
    """Every parameter of the model but the embedding, which gives a row a token, and the norms."""
    engine = one.engine()
    read = sum(
        weight.numel() for name, weight in one.model.named_parameters() if "proj" in name or "lm_head" in name
    )
    biases = sum(weight.numel() for name, weight in one.model.named_parameters() if name.endswith("bias"))
    assert weight_bytes(engine) == 4 * (read - biases)
    assert RecordedEngine(engine, engine.limits).steps == []


def test_it_explains_itself() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "sortedcontainers, pyzmq and setproctitle" in said.stdout
