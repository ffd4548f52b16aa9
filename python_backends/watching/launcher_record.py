"""The launcher's record on the board: whether the server drains, and how often each process was started
again. The launcher counts, because it outlives the other processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from python_backends.watching.board import LAUNCHER, Board


class LauncherRecord:
    """The launcher's side."""

    def __init__(self, board: Board, processes: Iterable[str]) -> None:
        self.board = board
        self._start_time_s = time.time()
        self._restarts = dict.fromkeys(processes, 0)
        self._is_draining = False
        self._write()

    def count_restart(self, process: str) -> None:
        self._restarts[process] += 1
        self._write()

    def drain(self) -> None:
        """New requests are refused from now on."""
        self._is_draining = True
        self._write()

    def _write(self) -> None:
        said = {"is_draining": self._is_draining, "start_time_s": self._start_time_s}
        self.board.write(LAUNCHER, json.dumps({**said, "restarts": self._restarts}).encode())


def is_draining(board: Board) -> bool:
    return bool(_read(board).get("is_draining"))


def read_restarts(board: Board) -> tuple[float, dict[str, int]]:
    """Returns when the launcher was started, in Unix time, and how often each process was started again; 0
    and none if no launcher has written a record.
    """
    said = _read(board)
    return said.get("start_time_s", 0.0), said.get("restarts", {})


def _read(board: Board) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(board.read(LAUNCHER) or b"{}")
    return said
