"""The process of one instance, as the supervisor sees it. Its record on the board says whether it is ready;
its beats there show that it is alive.
"""

from __future__ import annotations

import logging
import math
import time

from python_backends.launcher.fleets.fleet import Child
from python_backends.launcher.health import FailedStarts
from python_backends.launcher.run_files import RunFiles
from python_backends.linux.pauses import Silence
from python_backends.settings import Settings
from python_backends.watching.board import Board, instance_name
from python_backends.watching.instance_state import InstanceRecord, State

log = logging.getLogger("gapless")

END_S = 3.0  # time to end after SIGTERM


class InstanceProcess:
    """Decides when the process is started and ended; `child` does both."""

    def __init__(self, settings: Settings, files: RunFiles, board: Board, number: int, child: Child) -> None:
        self.number = number
        self.name = f"instance {number}"
        self._process_name = instance_name(number)
        self._files = files
        self._settings = settings
        self._child = child
        self._record = InstanceRecord(board, number)
        self._failed_starts = FailedStarts(self.name)
        self._is_on = False  # False: it was not started, or has ended as it was asked to
        self._silence = Silence()
        self._killed_at_s = math.inf  # when it must have ended; inf: it may run

    @property
    def is_ready(self) -> bool:
        return self._record.read()[0] is State.READY

    def start(self) -> None:
        self._files.keep()
        self._record.write_on(State.STARTING)
        self._child.start()
        self._is_on = True
        self._silence = Silence()

    def look(self) -> None:
        """Brings up to date what is known of it. To be called several times a second."""
        if self._is_on:
            self._child.look()

    def heal(self) -> None:
        """Starts it if it is off; starts it again if it has ended or no longer beats. Raises GiveUpError."""
        if not self._is_on:
            self.start()
            return
        if self._killed_at_s < math.inf:
            self.end()  # a later call starts it
            return
        if not self.has_ended() and not self._looks_stalled():
            return
        log.warning("%s %s; starting it again", self.name, self._what_happened())
        self._failed_starts.book(was_ready=self.is_ready)
        self._files.restarts.add(self._process_name)
        self.stop(0)
        self.start()

    def end(self) -> None:
        """Sends SIGTERM at the first call, and SIGKILL if it has not ended after END_S. Doesn't wait."""
        if not self._is_on:
            return
        now_s = time.monotonic()
        if self._killed_at_s == math.inf:
            log.info("%s is not wanted any more", self.name)
            self._killed_at_s = now_s + END_S
            self.ask_to_end()
        elif self.has_ended() or now_s >= self._killed_at_s:
            self.stop(0)
            self._is_on, self._killed_at_s = False, math.inf
            self._failed_starts = FailedStarts(self.name)

    def ask_to_end(self) -> None:
        if self._is_on:
            self._child.ask_to_end()

    def stop(self, wait_s: float) -> None:
        if self._is_on:
            self._child.stop(wait_s)

    def has_ended(self) -> bool:
        return self._is_on and self._child.how_it_ended() is not None

    def _looks_stalled(self) -> bool:
        """Returns whether its record has not changed for too long. It beats when it is ready."""
        is_starting = self._record.read()[0] is State.STARTING
        longest_s = self._settings.server.ready_s if is_starting else self._settings.streams.dead_after_s
        return self._silence.look(self._record.sign()) > longest_s

    def _what_happened(self) -> str:
        return self._child.how_it_ended() or "sent no heartbeat in time"
