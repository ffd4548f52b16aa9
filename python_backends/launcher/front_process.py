"""The process of the front, for the supervisor. Its answers end with it; all others go on."""

from __future__ import annotations

import socket

from python_backends.launcher.address import ALL_IPV4, LOOPBACK, ip_of
from python_backends.launcher.companion import Companion
from python_backends.launcher.run_files import FRONT, RunFiles
from python_backends.settings import Settings
from python_backends.watching.board import VARIABLE, Board

LONGEST_PAUSE_S = 4.0  # clients wait for it
CONNECT_S = 1.0


class FrontProcess(Companion):
    """There is none where front.port is 0."""

    def __init__(self, settings: Settings, files: RunFiles, board: Board) -> None:
        environment = {VARIABLE: str(board.fd), "TOKENIZERS_PARALLELISM": "false"}
        super().__init__(FRONT, "front", files, LONGEST_PAUSE_S, environment, [board.fd])
        self._port = settings.front.port
        ip = ip_of(settings.server.address)
        # without a key it listens on the second
        self._addresses = (LOOPBACK if ip == ALL_IPV4 else ip, LOOPBACK)

    def heal(self) -> None:
        if self._port:
            super().heal()

    def is_ready(self) -> bool:
        """Whether it takes connections, if there is one."""
        return not self._port or any(map(self._listens, self._addresses))

    def _listens(self, ip: str) -> bool:
        try:
            socket.create_connection((ip, self._port), CONNECT_S).close()
        except OSError:
            return False
        return True
