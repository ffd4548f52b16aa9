"""The process of one instance, as the supervisor sees it. Its record on the board says whether it is ready;
its beats there show that it is alive.
"""

from __future__ import annotations

import logging
import math
import time

from python_backends.launcher.fleets.fleet import Child
from python_backends.launcher.health import FailedStarts, GiveUpError, Start
from python_backends.launcher.run_files import RunFiles
from python_backends.linux.pauses import Silence, longest_silence_s
from python_backends.settings import Settings
from python_backends.watching.board import instance_name
from python_backends.watching.instance_state import InstanceRecord, State
from python_backends.watching.launcher_record import LauncherRecord

log = logging.getLogger("gapless")

END_S = 3.0  # time to end after it was asked to


class InstanceProcess:
    """Decides when the process is started and ended; `child` does both."""

    def __init__(
        self, settings: Settings, files: RunFiles, launcher: LauncherRecord, number: int, child: Child
    ) -> None:
        self._launcher = launcher
        self.number = number
        self.name = f"instance {number}"
        self._process_name = instance_name(number)
        self._files = files
        self._settings = settings
        self._child = child
        self._record = InstanceRecord(launcher.board, number)
        self._start = Start(self.name, self._start_child)
        self._failed_starts = FailedStarts(self.name)
        self._is_on = False  # False: it was not started, or has ended as it was asked to
        self._silence = Silence()
        self._killed_at_s = math.inf  # when it must have ended; inf: it may run

    @property
    def is_ready(self) -> bool:
        return self._record.read()[0] is State.READY

    def start(self, has_failed: bool = False) -> None:
        """`has_failed`: its last start led to nothing."""
        self._record.write_on(State.STARTING)
        self._is_on = True
        self._silence = Silence()
        self._start.begin(has_failed)

    def look(self) -> None:
        """Brings up to date what is known of it, and starts it if a pause is over. To be called several times
        a second.
        """
        if self._is_on and self._killed_at_s == math.inf:
            self._start.go_on()
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
        what_happened = self._what_happened()
        self.stop(0)
        self._is_on = False
        was_ready = self._was_ready()
        self._book(was_ready, what_happened)
        log.warning("%s %s; starting it again", self.name, what_happened)
        self._launcher.count_restart(self._process_name)
        self.start(has_failed=not was_ready)

    def end(self) -> None:
        """Asks it to end at the first call; kills it if it has not ended after END_S. Doesn't wait."""
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
        if self._is_on and not self._start.is_due:
            self._child.stop(wait_s)

    def has_ended(self) -> bool:
        return self._is_on and not self._start.is_due and self._child.how_it_ended() is not None

    def _start_child(self) -> None:
        self._files.keep()
        self._child.start()

    def _was_ready(self) -> bool:
        return self._record.read()[0] is not State.STARTING

    def _book(self, was_ready: bool, what_happened: str) -> None:
        """Raises GiveUpError."""
        try:
            self._failed_starts.book(was_ready)
        except GiveUpError:
            log.warning("%s %s", self.name, what_happened)
            raise

    def _looks_stalled(self) -> bool:
        """Returns whether its record has not changed for too long. It beats when it is ready."""
        silent_s = self._silence.look(self._record.sign())
        if self._record.read()[0] is State.STARTING:
            return silent_s > self._settings.server.ready_s
        dead_after_s = self._settings.streams.dead_after_s
        return silent_s > dead_after_s and silent_s > longest_silence_s(
            dead_after_s, self._record.longest_step_s()
        )

    def _what_happened(self) -> str:
        return self._child.how_it_ended() or "sent no heartbeat in time"
