"""How often each process had to be started again.

The launcher counts, because it outlives the others, and writes the counts to a file of the run directory; the
scheduler model reads it and puts them on /metrics. The file is for that alone: nothing ends because it is
lost or can't be written.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger("gapless")

NAME = "restarts.json"


class RestartCounts:
    """The launcher's end: the counts, and the file as their copy."""

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
        """Writes the file again, if that can be done."""
        written = self._path.with_suffix(".new")
        try:
            written.write_text(json.dumps({"start_time_s": self._start_time_s, "counts": self._counts}))
            written.replace(self._path)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        """Once."""
        if not self._has_complained:
            self._has_complained = True
            log.warning(
                "the counts of restarts can't be written (%s); /metrics shows old ones until they can", error
            )


class RestartsFile:
    """The scheduler model's end."""

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / NAME

    def read(self) -> tuple[float, dict[str, int]]:
        """When the launcher was started, in Unix time, and the count of each process.

        Raises OSError or ValueError if the file is lost or damaged.
        """
        written = json.loads(self._path.read_text())
        return written["start_time_s"], written["counts"]
