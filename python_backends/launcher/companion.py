"""A process next to the server that the launcher starts again when it ends, after longer and longer pauses if
it ends soon.

No request of Triton depends on one: the server goes on without it. Called by the supervisor.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time

from python_backends.launcher.health import Start
from python_backends.launcher.run_files import RunFiles
from python_backends.linux.process_group import ASK, deaf, end_group, start_group
from python_backends.settings import ROOT
from python_backends.watching.board import VARIABLE
from python_backends.watching.launcher_record import LauncherRecord

log = logging.getLogger("gapless")

STOP_S = 2.0
LONG_S = 60.0  # after one that ran for so long, pauses begin again with the shortest
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "TOKENIZERS_PARALLELISM": "false",
    # gRPC's client, in the front: the thread that waits for responses reads the connection itself. Else three
    # more threads hand each response on, which costs a quarter of the front's processor time
    "GRPC_EXPERIMENTS": "-event_engine_client",
}


class Companion:
    """One such process, which runs a module of Python."""

    def __init__(
        self,
        name: str,
        module: str,
        files: RunFiles,
        record: LauncherRecord,
        longest_pause_s: float,
        *arguments: str,
    ) -> None:
        """`name` is that in the log and in the counts of restarts. `longest_pause_s` is from its end to the
        next start. The process gets the run directory and `arguments`, and inherits the board.
        """
        self._name = name
        self._files = files
        self._record = record
        self._command = deaf([sys.executable, "-m", module, str(files.directory), *arguments])
        self._process: subprocess.Popen[bytes] | None = None
        self._start = Start(f"the {name}", self._start_process, longest_pause_s)
        self._started_s = 0.0
        self._has_to_be_counted = False  # it ended, and was not started again since

    @property
    def has_ended(self) -> bool:
        """Whether it was started and runs no more."""
        return self._process is not None and self._process.poll() is not None

    def heal(self) -> None:
        """Starts it for the first time, and again after it has ended."""
        if self._process is None:
            if not self._start.is_due:
                self._start.begin()
            self._start.go_on()
        elif (code := self._process.poll()) is not None:
            if time.monotonic() - self._started_s >= LONG_S:
                self._start.forget_pauses()
            next_s = self._start.next_pause_s
            log.warning("the %s ended with %d; starting it again in %.0f s", self._name, code, next_s)
            end_group(self._process, 0)
            self._process, self._has_to_be_counted = None, True
            self._start.begin(has_failed=True)

    def _start_process(self) -> None:
        """Raises OSError if the host refuses."""
        self._files.keep()
        board = self._record.board.fd
        environment = {**os.environ, **ENVIRONMENT, VARIABLE: str(board)}
        self._process = start_group(self._command, environment, cwd=ROOT, pass_fds=[board])
        self._started_s = time.monotonic()
        if self._has_to_be_counted:
            self._record.count_restart(self._name)
        self._has_to_be_counted = False

    def ask_to_end(self) -> None:
        """So that it ends while the caller waits for others; `stop` waits for it."""
        if self._process is not None:
            self._process.send_signal(ASK)

    def stop(self) -> None:
        if self._process is not None:
            end_group(self._process, STOP_S)

    def kill(self) -> None:
        """The next `heal` finds that it has ended."""
        if self._process is not None:
            self._process.kill()
