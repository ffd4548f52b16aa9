"""Every script of benchmarks/ explains itself and takes --quick and --json; the short ones run, and print their table last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.results_file import MEASURED, ROOT

SHORT = {
    "host_time.py": ("--slots", "1,16", "--waiting", "0,100", "--engines", "toy,none"),
    "token_gap.py": ("--engine", "toy", "--slots", "4"),
}


def said(*words: str) -> str:
    found = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.parametrize("script", MEASURED)
def test_a_script_explains_itself_and_takes_quick_and_json(script: str) -> None:
    text = said(f"benchmarks/{script}", "--help")
    first_line = (ROOT / "benchmarks" / script).read_text().splitlines()[0].removeprefix('"""')
    assert first_line in text
    assert "--quick" in text
    assert "--json" in text


@pytest.mark.parametrize("script", SHORT)
def test_a_short_script_runs_and_prints_its_table_last(script: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    text = said(f"benchmarks/{script}", "--quick", "--json", str(path), *SHORT[script])
    result = json.loads(path.read_text())
    assert result["commit"]
    assert result["rows"]
    lines = text.splitlines()
    assert lines[-1].startswith("| ")
    assert len([line for line in lines if line.startswith("| ")]) == len(result["rows"]) + 2
    assert lines[-len(result["rows"]) - 2].startswith("| " + next(iter(result["rows"][0])))
