"""Shows whether requests can be answered now: if so, the run directory has a file `ready-<HTTP port>`.

Triton reports "ready" even if a Python model hangs or is dead. The launcher updates the file's modification
time at least every two seconds while it watches. `build/image/is-ready` checks both. Called by the
supervisor.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

SAY_EVERY_S = 2.0


def path_of(run_directory: Path, http_port: int) -> Path:
    return run_directory / f"ready-{http_port}"


class Readiness:
    """Makes, touches and removes the file."""

    def __init__(self, run_directory: Path, http_port: int) -> None:
        self._path = path_of(run_directory, http_port)
        self._said: bool | None = None
        self._said_s = 0.0

    def say(self, is_ready: bool) -> None:
        """Writes at once if the value has changed, else every two seconds. A full disk delays only this."""
        now_s = time.monotonic()
        if is_ready == self._said and now_s - self._said_s < SAY_EVERY_S:
            return
        self._said, self._said_s = is_ready, now_s
        with contextlib.suppress(OSError):
            if is_ready:
                self._path.touch()
            else:
                self._path.unlink(missing_ok=True)
