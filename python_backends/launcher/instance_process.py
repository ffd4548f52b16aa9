"""The process of one instance, as the supervisor sees it: its state file says whether it is ready, that file's age whether it lives."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from python_backends.config import ROOT, Settings
from python_backends.instance_state import State, StateFile
from python_backends.large_pages import with_large_pages
from python_backends.launcher.health import FailedStarts
from python_backends.launcher.process_group import end_group, start_group
from python_backends.restarts import RestartsFile

log = logging.getLogger("gapless")


class InstanceProcess:
    def __init__(self, settings: Settings, run_directory: Path, number: int, processors: frozenset[int] | None) -> None:
        self.name = f"instance {number}"
        self._restarts = RestartsFile(run_directory)
        self._settings = settings
        self._processors = processors
        self._command = [sys.executable, "-m", "python_backends.instance", str(run_directory), str(number)]
        self._state = StateFile(run_directory, number)
        self._failed_starts = FailedStarts(self.name)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0

    @property
    def is_ready(self) -> bool:
        return self._state.read()[0] is State.READY

    def start(self) -> None:
        self._state.write_starting()
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # a library may live where only its user knows
        environment = with_large_pages({**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
        self._process = start_group(self._command, environment, self._processors, cwd=ROOT)
        self._started_s = time.monotonic()

    def heal(self) -> None:
        """Starts it again if it has ended or no longer beats. Raises GiveUpError."""
        if not self.has_ended() and not self._is_stalled():
            return
        log.warning("%s %s; starting it again", self.name, self._what_happened())
        self._failed_starts.book(was_ready=self.is_ready)
        self._restarts.add("instance")
        self.stop(0)
        self.start()

    def stop(self, wait_s: float) -> None:
        if self._process is not None:
            end_group(self._process, wait_s)

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _is_stalled(self) -> bool:
        if self._state.read()[0] is State.STARTING:
            return time.monotonic() - self._started_s > self._settings.server.ready_s
        return self._state.age_s() > self._settings.streams.dead_after_s

    def _what_happened(self) -> str:
        assert self._process is not None
        code = self._process.poll()
        return "no longer beats" if code is None else f"ended with {code}"
