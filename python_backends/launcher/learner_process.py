"""The process of the learner, for the supervisor: started again when it ends, after longer and longer pauses.
No request depends on it. Tested in tests/server/test_predictor.py and tests/pure/test_learner_process.py.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time

from python_backends.launcher.run_files import RunFiles
from python_backends.linux.process_group import end_group, start_group
from python_backends.settings import ROOT

log = logging.getLogger("gapless")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0  # from its end to the next start
STOP_S = 2.0


class LearnerProcess:
    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._command = [sys.executable, "-m", "python_backends.learner", str(files.directory)]
        self._process: subprocess.Popen[bytes] | None = None
        self._pause_s = FIRST_PAUSE_S
        self._start_at_s = 0.0

    def heal(self) -> None:
        """Starts it for the first time, and again after it has ended."""
        now_s = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None:
                return
            log.warning(
                "the learner ended with %d; starting it again in %.0f s",
                self._process.returncode,
                self._pause_s,
            )
            end_group(self._process, 0)
            self._process = None
            self._postpone(now_s)
        if now_s >= self._start_at_s:
            self._files.keep()
            self._start(now_s)

    def _start(self, now_s: float) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        try:
            self._process = start_group(self._command, environment, cwd=ROOT)
        except OSError as error:  # too many processes, for example
            log.warning("the learner can't be started (%s); trying again in %.0f s", error, self._pause_s)
            self._postpone(now_s)

    def _postpone(self, now_s: float) -> None:
        """The next start comes after a pause, which is longer each time."""
        self._start_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def stop(self) -> None:
        if self._process is not None:
            end_group(self._process, STOP_S)
