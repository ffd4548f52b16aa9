"""Counts how often each process was started again.

The launcher counts, because it outlives the other processes, and writes the counts to a file in the run
directory; the scheduler model reads it and exports them to /metrics. The file has no other use: no request
fails if it is lost or can't be written.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path

from python_backends.watching.cluster_files import replace_json

log = logging.getLogger("gapless")

NAME = "restarts.json"


class RestartCounts:
    """The launcher's side: the counts, and the file as their copy."""

    def __init__(self, run_directory: Path, processes: Iterable[str]) -> None:
        self._path = run_directory / NAME
        self._start_time_s = time.time()
        self._counts = dict.fromkeys(processes, 0)
        self._has_complained = False
        self.write()

    def add(self, process: str) -> None:
        self._counts[process] += 1
        self.write()

    def write(self) -> None:
        """Writes the file; if that fails, only logs a warning, the first time."""
        try:
            replace_json(self._path, {"start_time_s": self._start_time_s, "counts": self._counts})
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                log.warning(
                    "the counts of restarts can't be written (%s); /metrics has old ones until then", error
                )


def read_restarts(run_directory: Path) -> tuple[float, dict[str, int]]:
    """Returns when the launcher was started, in Unix time, and how often each process was started again.

    Raises OSError or ValueError if the file is lost or damaged.
    """
    written = json.loads((run_directory / NAME).read_text())
    return written["start_time_s"], written["counts"]
