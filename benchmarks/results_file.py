"""What every result that is kept begins with: on which machine, with which versions, when, by which command; and rows as a table."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peer_work import num_cores

PACKAGES = ("torch", "transformers", "openvino", "numpy")
CORES = num_cores()  # now: who measures may keep off some later


def write_result(path: Path, result: dict[str, Any], device: dict[str, Any] | None = None) -> None:
    """`result` as JSON, behind what it depends on; `device` says more of the machine. Makes the folder."""
    depends_on = {
        "machine": machine() | (device or {}),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": " ".join(["python", *sys.argv]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(depends_on | result, indent=1) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """In Markdown; all rows have the columns of the first."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.partition(": ")[2] for line in lines if line.startswith("model name")}
    threads = {name: value for name, value in os.environ.items() if "OMP_" in name}
    return {"processor": ", ".join(models), "cores": CORES, "memory_gib": round(memory, 1), "environment": threads}


def versions() -> dict[str, str]:
    installed = {each.name.lower() for each in importlib.metadata.distributions()}
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES if name in installed}
