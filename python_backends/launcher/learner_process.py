"""The process of the learner, for the supervisor: started again when it ends, after longer and longer pauses.
No request depends on it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys

from python_backends.launcher.health import Pause
from python_backends.launcher.run_files import LEARNER, RunFiles
from python_backends.linux.process_group import deaf, end_group, start_group
from python_backends.settings import ROOT

log = logging.getLogger("gapless")

LONGEST_PAUSE_S = 300.0  # from its end to the next start
STOP_S = 2.0


class LearnerProcess:
    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._command = deaf([sys.executable, "-m", "python_backends.learner", str(files.directory)])
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = Pause(LONGEST_PAUSE_S)
        self._has_ended = False  # and was not started again since

    def heal(self) -> None:
        """Starts it for the first time, and again after it has ended."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            log.warning(
                "the learner ended with %d; starting it again in %.0f s",
                self._process.returncode,
                self._pause.next_s,
            )
            end_group(self._process, 0)
            self._process, self._has_ended = None, True
            self._pause.begin()
        if self._pause.is_over:
            self._files.keep()
            self._start()

    def _start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        try:
            self._process = start_group(self._command, environment, cwd=ROOT)
        except OSError as error:  # too many processes, for example
            what = "the learner can't be started (%s); trying again in %.0f s"
            log.warning(what, error, self._pause.next_s)
            self._pause.begin()
            return
        if self._has_ended:
            self._files.restarts.add(LEARNER)
        self._has_ended = False

    def stop(self) -> None:
        if self._process is not None:
            end_group(self._process, STOP_S)
