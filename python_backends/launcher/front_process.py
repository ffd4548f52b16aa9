"""The process of the front, for the supervisor. Its answers end with it; all others go on."""

from __future__ import annotations

import logging
import socket

from python_backends.launcher.address import ALL_IPV4, LOOPBACK, ip_of
from python_backends.launcher.companion import Companion
from python_backends.launcher.run_files import RunFiles
from python_backends.linux.pauses import Silence
from python_backends.settings import Settings
from python_backends.watching.board import FRONT
from python_backends.watching.launcher_record import LauncherRecord

log = logging.getLogger("gapless")

LONGEST_PAUSE_S = 4.0  # clients wait for it
CONNECT_S = 1.0


class FrontProcess(Companion):
    """There is none where front.port is 0."""

    def __init__(self, settings: Settings, files: RunFiles, record: LauncherRecord) -> None:
        super().__init__(FRONT, "front", files, record, LONGEST_PAUSE_S)
        self._board = record.board
        self._port = settings.front.port
        self._ready_s, self._dead_after_s = settings.server.ready_s, settings.streams.dead_after_s
        ip = ip_of(settings.server.address)
        # without a key it listens on the second
        self._addresses = (LOOPBACK if ip == ALL_IPV4 else ip, LOOPBACK)
        self._silence = Silence()
        self._sign = 0  # its last beat before it was started

    def heal(self) -> None:
        """Starts it again also if it has hung: its beats on the board have stopped."""
        if not self._port:
            return
        super().heal()
        has_beaten = self._board.sign(FRONT) != self._sign
        silent_s = self._silence.look(self._board.sign(FRONT))
        if not self.has_ended and silent_s > (self._dead_after_s if has_beaten else self._ready_s):
            log.warning("the front hangs: it sent no heartbeat in time and was killed")
            self._silence = Silence()
            self.kill()

    def is_ready(self) -> bool:
        """Whether it takes connections, if there is one."""
        return not self._port or any(map(self._listens, self._addresses))

    def _start(self) -> None:
        self._sign, self._silence = self._board.sign(FRONT), Silence()
        super()._start()

    def _listens(self, ip: str) -> bool:
        try:
            socket.create_connection((ip, self._port), CONNECT_S).close()
        except OSError:
            return False
        return True
