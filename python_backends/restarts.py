"""How often each process had to be started again, in a file of the run directory.

The launcher writes it, because it outlives the others; the scheduler model reads it and puts it on /metrics.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path


class RestartsFile:
    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / "restarts.json"

    def begin(self, processes: Iterable[str]) -> None:
        """None of them has been started again so far."""
        self._write({"start_time_s": time.time(), "counts": dict.fromkeys(processes, 0)})

    def add(self, process: str) -> None:
        start_time_s, counts = self.read()
        self._write({"start_time_s": start_time_s, "counts": {**counts, process: counts[process] + 1}})

    def read(self) -> tuple[float, dict[str, int]]:
        """When the launcher was started, in Unix time, and the count of each process."""
        written = json.loads(self._path.read_text())
        return written["start_time_s"], written["counts"]

    def _write(self, content: dict[str, object]) -> None:
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(content))
        written.replace(self._path)
