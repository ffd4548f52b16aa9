"""The scheduler model's record on the board, where there can be several instances. The launcher starts and
ends instances by it, and the next scheduler model goes on with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from python_backends.watching.board import Board

SCHEDULER = "scheduler"  # its process on the board


@dataclass(frozen=True, slots=True)
class ClusterState:
    wanted: frozenset[int]  # instances that should run
    drained: frozenset[int] = frozenset()  # instances that are to be empty, by an order
    ordered: int | None = None  # this many instances should run; None: the load or the settings decide

    def write(self, board: Board) -> None:
        said = {"wanted": sorted(self.wanted), "drained": sorted(self.drained), "ordered": self.ordered}
        board.write(SCHEDULER, json.dumps(said).encode())

    @classmethod
    def read(cls, board: Board) -> ClusterState | None:
        """None if no scheduler model has written it."""
        said = json.loads(board.read(SCHEDULER) or b"null")
        return said and cls(frozenset(said["wanted"]), frozenset(said["drained"]), said["ordered"])
