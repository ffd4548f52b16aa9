"""Results that are kept say which commit, machine, versions and command they are
of, and which of them are older than their code.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from benchmarks import ROOT, results_file
from benchmarks.results_file import MEASURED, RESULTS, age, benchmark_of, code_of, cpuinfo, write_result

# the first digits of each file's SHA-256: one that is measured again has to name its commit
BEFORE_COMMITS_WERE_RECORDED = {
    "magnus.json": "d27f80e052344202",
    "magnus_seed_1.json": "c87dbc5724ea0ed2",
    "magnus_seed_2.json": "b360b43e7ca8b6c4",
    "magnus_seed_3.json": "4f791ffdcffae5c8",
    "magnus_weight_bound.json": "7a86102d1d649a2c",
    "scheduling_check.json": "85ebc40c85c8941e",
    "scheduling_simulated.json": "8e8d7a595f34003b",
    "triton_cost_one_thread.json": "b6cf98be04afbcb7",
}
FILES = sorted(RESULTS.glob("*.json"))


def is_old(path: Path) -> bool:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return BEFORE_COMMITS_WERE_RECORDED.get(path.name) == digest[:16]


def lacks(path: Path) -> list[str]:
    """What a result should say and does not: how it was measured, and with which code."""
    result = json.loads(path.read_text())
    wanted = {
        "command": result["command"].startswith(("python benchmarks/", "python -m benchmarks.")),
        "processor": bool(result["machine"]["processor"]),
        "python": bool(result["versions"]["python"]),
        "benchmark": bool(MEASURED.get(benchmark_of(result))),
    }
    if not is_old(path):
        wanted |= {
            "commit": len(result["commit"]) == 40 and result["dirty"] is False,
            "date": result["date"] > "2026-11",
            "machine": {"processor", "features", "cores", "memory_gib"} <= set(result["machine"]),
        }
    return [name for name, is_there in wanted.items() if not is_there]


def test_a_result_says_what_it_was_measured_with() -> None:
    assert FILES
    assert {path.name: names for path in FILES if (names := lacks(path))} == {}


def test_the_benchmarks_are_there_and_so_is_what_they_measure() -> None:
    assert [benchmark for benchmark in MEASURED if not code_of(benchmark).exists()] == []
    measured = [(benchmark, path) for benchmark in MEASURED for path in MEASURED[benchmark]]
    assert [(benchmark, path) for benchmark, path in measured if not (ROOT / path).exists()] == []


def test_what_a_result_lacks_is_found(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    result = {
        "command": "cat benchmarks/other.py",
        "machine": {"processor": "x"},
        "versions": {"python": "3"},
    }
    path.write_text(json.dumps({**result, "commit": "unknown", "dirty": True, "date": "?"}))
    assert lacks(path) == ["command", "benchmark", "commit", "machine"]


def test_a_result_begins_with_commit_machine_date_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_file, "COMMIT", {"commit": "a" * 40, "dirty": False})
    monkeypatch.setattr(sys, "argv", ["/checkout/benchmarks/peers/__main__.py", "--quick"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("benchmarks.peers.__main__", None))
    write_result(tmp_path / "new" / "some.json", {"rows": [1]}, {"gpu": "none"})
    result = json.loads((tmp_path / "new" / "some.json").read_text())
    assert list(result) == ["commit", "dirty", "machine", "versions", "date", "command", "rows"]
    assert result["commit"] == "a" * 40
    assert shlex.split(result["command"]) == ["python", "-m", "benchmarks.peers", "--quick"]
    assert result["machine"]["gpu"] == "none"
    assert benchmark_of(result) == "peers"


def test_the_commit_is_that_of_the_checkout_and_changes_make_it_dirty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {"status": " M python_backends/instance/loop.py", "rev-parse": "b" * 40}
    monkeypatch.setattr(results_file, "git", lambda *words: answers[words[0]])
    assert results_file.current_commit() == {"commit": "b" * 40, "dirty": True}
    answers["status"] = ""
    assert results_file.current_commit() == {"commit": "b" * 40, "dirty": False}


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_file, "ROOT", Path("/"))
    assert results_file.current_commit() == {"commit": "unknown", "dirty": True}


def test_a_result_is_stale_when_its_script_or_what_it_measures_has_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def git(*words: str) -> str:
        asked.append(words)
        return "3"

    monkeypatch.setattr(results_file, "git", git)
    path = tmp_path / "some.json"
    path.write_text(
        json.dumps(
            {
                "commit": "c" * 40,
                "dirty": False,
                "date": "2026-11-23",
                "command": "python benchmarks/lengths.py",
            }
        )
    )
    assert age(path)["commits_since"] == "3"
    assert asked[0][:3] == ("rev-list", "--count", f"{'c' * 40}..HEAD")
    assert {"benchmarks/lengths.py", "benchmarks/common", *MEASURED["lengths"]} <= set(asked[0])


def test_a_result_without_a_commit_counts_as_stale(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(json.dumps({"command": "python benchmarks/lengths.py"}))
    assert age(path) | {"result": ""} == {
        "result": "",
        "benchmark": "lengths",
        "date": "?",
        "commit": "not recorded",
        "commits_since": "unknown",
        "dirty": "?",
    }


def test_the_fields_of_the_processor_are_read_as_linux_writes_them() -> None:
    lines = [
        "model name\t: AMD EPYC",
        "cpu family\t: 26",
        "flags\t\t: fpu avx512_bf16",
        "model name\t: AMD EPYC",
    ]
    assert cpuinfo(lines, "model name") == {"AMD EPYC"}
    assert cpuinfo(lines, "flags") == {"fpu avx512_bf16"}
