"""Every benchmark explains itself and takes --quick and --json;
the short ones run, and print their table last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.finetuning_speed import shape_names
from benchmarks.results_file import MEASURED, code_of
from tests.support.published import published
from tests.support.tinker_sdk import TINKER

SHORT = {
    "cluster": ("--policies", "infaas,ours"),
    "hostile_guides": (),
    "host_time": ("--slots", "1,16", "--waiting", "0,100", "--engines", "toy,none"),
    "token_gap": ("--engine", "toy", "--slots", "4"),
}
LONG = {  # ten seconds to a minute each; what they make for themselves is made again
    "scheduling": (
        "--simulate",
        "--step-time",
        "0.015,0.0004,0.0000005,0.0001,0",
        "--policies",
        "fcfs,ours,ours_history",
    ),
    "lengths": (),
    "coserving": (),
    "drift": (),
    "agreement": (),
    "batches": (),
    "front_cost": ("--part", "toy"),
    "guided_cost": ("--models", "tiny,bundled"),
    "bandwidth": (),
    "finetuning_memory": (),
    "finetuning_speed": (),
    "magnus": ("--simulate", "20,0.05,0.2"),
    "many_schemas": (),
    "many_streams": (),
    "migration": (),
    "ninth_task": (),
    "tinker_cost": (),
    "triton_cost": (),
    "watcher_cost": (),
}
KEYS = {"cluster": {"p99_ttft_s"}, "migration": {"downtime_ms", "slowdown"}}  # that others read
# other engines; a GPU, Triton's language, a published model (test_gpu_script.py, test_gpu_floor.py and
# test_real_lengths.py run them here)
NEEDS_MORE = {"peers", "guided_peers", "gpu", "gpu_floor", "real_lengths", "weight_formats"}


HELP = """
import contextlib, io, json, runpy, sys
texts = {}
for script in sys.argv[1:]:
    sys.argv, said = [script, "--help"], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        runpy.run_module(f"benchmarks.{script}", run_name="__main__", alter_sys=True)
    texts[script] = said.getvalue()
print(json.dumps(texts))
"""


def said(*words: str, **environment: str) -> str:
    return run_python("-m", *words, **environment)


def run_python(*words: str, **environment: str) -> str:
    environment = {**os.environ, **environment}
    found = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1100,
        env=environment,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def lacks(script: str, text: str) -> bool:
    """Whether a script's --help lacks the first line of its docstring, --quick or --json."""
    path = code_of(script)
    path = path / "__main__.py" if path.is_dir() else path
    first_line = path.read_text().splitlines()[0].partition('"""')[2]
    return not (first_line and first_line in text and "--quick" in text and "--json" in text)


def test_each_script_explains_itself_and_takes_quick_and_json() -> None:
    """All in one process: what they import takes seconds."""
    texts = json.loads(run_python("-c", HELP, *MEASURED).splitlines()[-1])
    assert texts.keys() == MEASURED.keys()
    assert [script for script, text in texts.items() if lacks(script, text)] == []


@pytest.mark.parametrize("script", SHORT)
def test_a_short_script_runs_and_prints_its_table_last(script: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    text = said(f"benchmarks.{script}", "--quick", "--json", str(path), *SHORT[script])
    result = json.loads(path.read_text())
    assert result["commit"]
    assert result["rows"]
    assert KEYS.get(script, set()) <= result.keys()
    lines = text.splitlines()
    assert lines[-1].startswith("| ")
    assert len([line for line in lines if line.startswith("| ")]) == len(result["rows"]) + 2
    assert lines[-len(result["rows"]) - 2].startswith("| " + next(iter(result["rows"][0])))


@pytest.mark.parametrize("script", LONG)
def test_a_long_script_runs_with_quick_and_prints_its_table_last(script: str, tmp_path: Path) -> None:
    if script == "tinker_cost" and not TINKER.exists():
        pytest.skip("build/set-up tinker was not asked for")
    path = tmp_path / "result.json"
    words = (f"benchmarks.{script}", "--quick", "--json", str(path), *LONG[script])
    text = said(*words, GAPLESS_BENCHMARK_ENVIRONMENTS=str(tmp_path))
    result = json.loads(path.read_text())
    assert result["commit"]
    assert KEYS.get(script, set()) <= result.keys()
    assert text.splitlines()[-1].startswith("| ")


def test_ways_to_keep_weights_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    said("benchmarks.weight_formats", "--quick", "--model", str(published("smollm2")), "--json", str(path))
    rows = json.loads(path.read_text())["rows"]
    assert {row["kind"] for row in rows} == {"float32", "own bits in float32"}
    assert all(row["of_float32"] == 1 for row in rows if row["kind"] == "float32")
    assert all(row["ms"] > 0 for row in rows)


@pytest.mark.parametrize("words", [("--scaling",), ("--check",), ("--router",)])
def test_the_other_measurements_of_a_cluster_run(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    text = said("benchmarks.cluster", "--quick", "--json", str(path), *words)
    assert text.splitlines()[-1].startswith("| ")
    result = json.loads(path.read_text())
    assert result["rows"]
    assert ("instance_seconds" in result) is ("--scaling" in words)


def test_a_shape_that_finetuning_speed_does_not_measure_is_refused_at_once() -> None:
    assert shape_names("M,S") == ["M", "S"]
    with pytest.raises(ArgumentTypeError, match="'8B' is not one of S, M"):
        shape_names("S,8B")


def test_every_script_is_run_by_a_test() -> None:
    assert {*SHORT, *LONG, *NEEDS_MORE} == MEASURED.keys()


def test_runs_of_a_cluster_are_kept_and_read_again(tmp_path: Path) -> None:
    words = ("benchmarks.cluster", "--quick", "--policies", "infaas", "--runs", str(tmp_path))
    first = said(*words)
    written_ns = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(written_ns) == 2, "the capacity and one run"
    assert said(*words).splitlines()[-1] == first.splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written_ns
