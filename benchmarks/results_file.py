"""Writes result files. Each begins with commit, machine, versions, date and command.

    python -m benchmarks.results_file --stale

lists the results in `results/` whose code has changed since they were measured. A result without a commit
counts as measured at the commit that added it.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.common.work import num_cores

RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "transformers", "peft", "numpy")
PROCESSOR_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SERVED = ("python_backends", "model_repository")
PREDICTED = ("python_backends/prediction", "python_backends/learner.py", "models/bundled")
FINETUNED = ("python_backends/engine", "python_backends/finetuning")
MEASURED = {  # by benchmark: what its results depend on, in addition to its own code and benchmarks/common
    "agreement": ("python_backends/engine", "python_backends/scheduling", "models/bundled"),
    "bandwidth": (
        "python_backends/engine",
        "python_backends/checkpoint",
        "benchmarks/weight_formats.py",
        "benchmarks/real_prompts",
    ),
    "batches": (*SERVED, "front"),
    "cluster": ("python_backends", "benchmarks/policies.py"),
    "coserving": ("python_backends",),
    "drift": PREDICTED,
    "finetuning_memory": FINETUNED,
    "finetuning_speed": FINETUNED,
    "front_cost": (*SERVED, "front", "benchmarks/triton_cost.py"),
    "gpu": (*SERVED, "benchmarks/coserving", "benchmarks/migration"),
    "gpu_floor": ("python_backends/engine", "benchmarks/gpu"),
    "guided_cost": (
        "python_backends",
        "front/guided",
        "benchmarks/triton_cost.py",
        "benchmarks/real_prompts",
    ),
    "guided_peers": (
        "python_backends",
        "benchmarks/peers",
        "benchmarks/guided_cost.py",
        "benchmarks/real_prompts",
    ),
    "host_time": ("python_backends",),
    "hostile_guides": ("python_backends/guides", "python_backends/text"),
    "lengths": PREDICTED,
    "magnus": ("python_backends", "models/bundled"),
    "many_schemas": (*SERVED, "tests/support/schemas.py"),
    "many_streams": (*SERVED, "benchmarks/triton_cost.py"),
    "migration": ("python_backends",),
    "ninth_task": (*SERVED, "models", "docs/examples/remove_comments.jsonl"),
    "peers": SERVED,
    "real_lengths": (*PREDICTED, "benchmarks/real_prompts"),
    "scheduling": (
        "python_backends",
        "models/bundled",
        "benchmarks/policies.py",
        "benchmarks/real_lengths",
        "benchmarks/real_prompts",
    ),
    "tinker_cost": (*SERVED, "front", "benchmarks/real_prompts"),
    "token_gap": ("python_backends",),
    "triton_cost": (*SERVED, "benchmarks/peers"),
    "weight_formats": (
        "python_backends/engine",
        "python_backends/checkpoint",
        "benchmarks/real_prompts",
    ),
    "watcher_cost": (*SERVED, "front", "benchmarks/real_prompts"),
}


def git(*words: str) -> str:
    """Returns git's output. Raises CalledProcessError or OSError if there is no git or no repository."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def current_commit() -> dict[str, Any]:
    """Returns the commit. `dirty`: tracked files other than results differ from it."""
    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "dirty": True}


CORES = num_cores()  # at import: a script may exclude some cores later
COMMIT = current_commit()  # at import: the code may change during the measurement


def write_result(path: Path, result: dict[str, Any], device: dict[str, Any] | None = None) -> None:
    """Writes `result` as JSON after commit, machine and versions; `device` is added to the machine. Makes the
    folder.
    """
    depends_on = {
        **COMMIT,
        "machine": machine() | (device or {}),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": " ".join(["python -m", _module(), *sys.argv[1:]]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(depends_on | result, indent=1) + "\n")


def _module() -> str:
    """The name of the module that runs, or of the package whose `__main__` runs."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else sys.argv[0]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns a table in Markdown; all rows have the columns of the first."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "processor": ", ".join(sorted(cpuinfo(lines, "model name"))),
        "family_and_model": ", ".join(sorted(cpuinfo(lines, "cpu family")))
        + "/"
        + ", ".join(sorted(cpuinfo(lines, "model"))),
        "features": [
            name
            for name in PROCESSOR_FEATURES
            if any(name in line.split() for line in cpuinfo(lines, "flags"))
        ],
        "cores": CORES,
        "memory_gib": round(memory, 1),
        "large_pages": LARGE_PAGES.read_text().strip() if LARGE_PAGES.exists() else "",
        "environment": {name: value for name, value in os.environ.items() if "OMP_" in name},
    }


def cpuinfo(lines: Sequence[str], field: str) -> set[str]:
    """Returns the different values of a field of /proc/cpuinfo."""
    return {
        value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == field
    }


def versions() -> dict[str, str]:
    installed = {each.name.lower() for each in importlib.metadata.distributions()}
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in PACKAGES if name in installed
    }


def benchmark_of(result: dict[str, Any]) -> str:
    """Returns which benchmark wrote a result: `benchmarks.peers`, in older ones `benchmarks/peers.py`."""
    match = re.search(r"\bbenchmarks[./](\w+)", result["command"])
    assert match is not None, result["command"]
    return match[1]


def code_of(benchmark: str) -> Path:
    """Returns its folder or its file."""
    folder = ROOT / "benchmarks" / benchmark
    return folder if folder.is_dir() else folder.with_suffix(".py")


def age(path: Path) -> dict[str, Any]:
    """Returns for one result how many commits have changed the measured code since then."""
    result = json.loads(path.read_text())
    benchmark, commit = benchmark_of(result), str(result.get("commit", ""))
    row = {
        "result": path.name,
        "benchmark": benchmark,
        "date": result.get("date", "?"),
        "commit": commit[:10] or "not recorded",
    }
    sources = [str(code_of(benchmark).relative_to(ROOT)), "benchmarks/common", *MEASURED[benchmark]]
    try:
        # it was measured before it was committed
        first = commit or git("log", "-1", "--format=%H", "--", str(path))
        since = git("rev-list", "--count", f"{first}..HEAD", "--", *sources) if first else "unknown"
    except (OSError, subprocess.CalledProcessError):
        since = "unknown"  # a commit that this clone does not have, or no git
    return row | {"commits_since": since, "dirty": result.get("dirty", "?")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stale", action="store_true", help="only results that are older than the code that they measure"
    )
    asked = parser.parse_args()
    rows = [age(path) for path in sorted(RESULTS.glob("*.json"))]
    shown = [
        row for row in rows if not asked.stale or row["commits_since"] != "0" or row["dirty"] is not False
    ]
    print(table(shown) if shown else "no result is older than the code that it measures")


if __name__ == "__main__":
    main()
