"""Writes result files. Each begins with commit, machine, versions, date and command.

    python benchmarks/results_file.py --stale

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
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peer_work import num_cores

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "transformers", "peft", "openvino", "numpy")
PROCESSOR_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SERVED = ("python_backends", "model_repository", "benchmarks/http_streams.py")
PREDICTED = (
    "python_backends/prediction",
    "python_backends/learner.py",
    "benchmarks/length_requests.py",
    "models/bundled",
)
FINETUNED = (
    "python_backends/engine",
    "python_backends/finetuning",
    "benchmarks/finetuning_trainers.py",
    "benchmarks/peer_models.py",
)
MEASURED = {  # by script: what its results depend on, in addition to the script itself
    "agreement.py": (
        "python_backends/engine",
        "python_backends/scheduling",
        "models/bundled",
        "benchmarks/bundled_prompts.py",
    ),
    "cluster.py": ("python_backends", "benchmarks/cluster_*.py"),
    "coserving.py": (
        "python_backends",
        "benchmarks/coserving_*.py",
        "benchmarks/finetuning_trainers.py",
        "benchmarks/peer_models.py",
        "benchmarks/http_streams.py",
    ),
    "drift.py": PREDICTED,
    "finetuning_memory.py": FINETUNED,
    "finetuning_speed.py": FINETUNED,
    "fused_windows.py": (*FINETUNED, "python_backends/scheduling"),
    "gpu.py": (*SERVED, "benchmarks/gpu*.py"),
    "gpu_floor.py": ("python_backends/engine", "benchmarks/gpu_counts.py", "benchmarks/gpu_model.py"),
    "host_time.py": ("python_backends", "benchmarks/host_time_loop.py"),
    "lengths.py": PREDICTED,
    "magnus.py": (
        "python_backends",
        "models/bundled",
        "benchmarks/magnus*.py",
        "benchmarks/static_batching",
        "benchmarks/bundled_prompts.py",
    ),
    "many_streams.py": (*SERVED, "benchmarks/triton_cost.py"),
    "migration.py": ("python_backends", "benchmarks/migration_*.py", "benchmarks/peer_models.py"),
    "ninth_task.py": (*SERVED, "models/bundled", "build/bundled", "docs/examples/remove_comments.jsonl"),
    "peers.py": (*SERVED, "benchmarks/peer*", "benchmarks/environments", "benchmarks/workload.json"),
    "scheduling.py": (
        "python_backends",
        "models/bundled",
        "benchmarks/scheduling*.py",
        "benchmarks/bundled_prompts.py",
    ),
    "token_gap.py": (
        "python_backends",
        "benchmarks/token_gap_loop.py",
        "benchmarks/recorded_engine.py",
        "benchmarks/resending_scheduler.py",
    ),
    "triton_cost.py": (*SERVED, "benchmarks/peer*", "benchmarks/workload.json"),
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
        "command": " ".join(["python", _script(), *sys.argv[1:]]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(depends_on | result, indent=1) + "\n")


def _script() -> str:
    """The script that runs, as it is named from the project's folder."""
    return os.path.relpath(sys.argv[0], ROOT) if Path(sys.argv[0]).is_relative_to(ROOT) else sys.argv[0]


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


def script_of(result: dict[str, Any]) -> str:
    """Returns the name of the script that wrote a result."""
    return Path(result["command"].split()[1]).name


def age(path: Path) -> dict[str, Any]:
    """Returns for one result how many commits have changed the measured code since then."""
    result = json.loads(path.read_text())
    script, commit = script_of(result), str(result.get("commit", ""))
    row = {
        "result": path.name,
        "script": script,
        "date": result.get("date", "?"),
        "commit": commit[:10] or "not recorded",
    }
    sources = [f"benchmarks/{script}", *MEASURED[script]]
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
