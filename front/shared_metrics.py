"""One page of metrics for several front processes: each writes its numbers on the board, and whichever is
asked adds up those of all.
"""

from __future__ import annotations

import msgspec

from front.metrics import FrontMetrics, Numbers
from python_backends.watching.board import Board, front_name


class SharedMetrics:
    def __init__(self, metrics: FrontMetrics, board: Board, number: int, num_processes: int) -> None:
        """`number`: of this process. It goes on with the counts of the one that had this number before it, so
        that no sum on the page becomes smaller.
        """
        self._metrics = metrics
        self._board = board
        self._name = front_name(number)
        self._all = [front_name(each) for each in range(num_processes)] if num_processes > 1 else []
        if self._all:
            self._add_to(metrics.numbers, self._name)

    def beat(self) -> None:
        """Shows the launcher that this process lives, and the other processes its numbers."""
        if self._all:
            self._board.write(self._name, msgspec.json.encode(self._metrics.numbers))
        else:
            self._board.beat(self._name)

    def of_all(self) -> Numbers:
        """As they were at the last beat of each process: what it counted since is lost if it dies."""
        if not self._all:
            return self._metrics.numbers
        total = Numbers()
        for name in self._all:
            self._add_to(total, name)
        return total

    def _add_to(self, total: Numbers, name: str) -> None:
        if said := self._board.read(name):
            total.add(msgspec.json.decode(said, type=Numbers))
