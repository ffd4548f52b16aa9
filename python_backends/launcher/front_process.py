"""The processes of the front, for the supervisor. The answers of one end with it; all others go on."""

from __future__ import annotations

import logging
import socket

from python_backends.launcher.address import ALL_IPV4, LOOPBACK, ip_of
from python_backends.launcher.companion import Companion
from python_backends.launcher.run_files import RunFiles
from python_backends.linux.pauses import Silence
from python_backends.settings import Settings
from python_backends.watching.board import front_name
from python_backends.watching.launcher_record import LauncherRecord

log = logging.getLogger("gapless")

LONGEST_PAUSE_S = 4.0  # clients wait for it
CONNECT_S = 1.0


class FrontProcess(Companion):
    """The front process of this number."""

    def __init__(self, settings: Settings, files: RunFiles, record: LauncherRecord, number: int = 0) -> None:
        self._name_on_board = front_name(number)
        super().__init__(
            self._name_on_board, "front", files, record, LONGEST_PAUSE_S, *[str(number)][:number]
        )
        self._board = record.board
        self._ready_s, self._dead_after_s = settings.server.ready_s, settings.streams.dead_after_s
        self._silence = Silence()
        self._sign = 0  # its last beat before it was started

    @property
    def has_beaten(self) -> bool:
        """Since it was started."""
        return self._board.sign(self._name_on_board) != self._sign

    def heal(self) -> None:
        """Starts it again also if it has hung: its beats on the board have stopped."""
        super().heal()
        silent_s = self._silence.look(self._board.sign(self._name_on_board))
        if not self.has_ended and silent_s > (self._dead_after_s if self.has_beaten else self._ready_s):
            log.warning("the %s hangs: it sent no heartbeat in time and was killed", self._name_on_board)
            self._silence = Silence()
            self.kill()

    def _start_process(self) -> None:
        self._sign, self._silence = self._board.sign(self._name_on_board), Silence()
        super()._start_process()


class FrontProcesses:
    """All of them, on one port; none where front.port is 0."""

    def __init__(self, settings: Settings, files: RunFiles, record: LauncherRecord) -> None:
        self._port = settings.front.port
        ip = ip_of(settings.server.address)
        self._ip = LOOPBACK if ip == ALL_IPV4 else ip
        numbers = range(settings.front.processes if self._port else 0)
        self._processes = [FrontProcess(settings, files, record, number) for number in numbers]

    @property
    def has_ended(self) -> bool:
        """Whether one was started and runs no more."""
        return any(each.has_ended for each in self._processes)

    def heal(self) -> None:
        for each in self._processes:
            each.heal()

    def is_ready(self) -> bool:
        """Whether all take connections."""
        return not self._port or (all(each.has_beaten for each in self._processes) and self._listens())

    def ask_to_end(self) -> None:
        for each in self._processes:
            each.ask_to_end()

    def stop(self) -> None:
        for each in self._processes:
            each.stop()

    def _listens(self) -> bool:
        try:
            socket.create_connection((self._ip, self._port), CONNECT_S).close()
        except OSError:
            return False
        return True
