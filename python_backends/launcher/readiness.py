"""Whether requests can be answered now: `ready-<HTTP port>` in the run directory is there while they can.

Triton goes on saying "ready" when a Python model hangs or is dead. The file's time of change is that of the
launcher's last look. `build/image/is-ready` asks both. Called by the supervisor.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

SAY_EVERY_S = 2.0


class Readiness:
    def __init__(self, run_directory: Path, http_port: int) -> None:
        self._path = run_directory / f"ready-{http_port}"
        self._said: bool | None = None
        self._said_s = 0.0

    def say(self, is_ready: bool) -> None:
        """At once if it has changed, else every two seconds. A full disk delays readiness alone."""
        now_s = time.monotonic()
        if is_ready == self._said and now_s - self._said_s < SAY_EVERY_S:
            return
        self._said, self._said_s = is_ready, now_s
        with contextlib.suppress(OSError):
            if is_ready:
                self._path.touch()
                os.utime(self._path)
            else:
                self._path.unlink(missing_ok=True)
