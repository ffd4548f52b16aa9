"""One page of metrics for several front processes: each writes its numbers on the board, and whichever is
asked adds up those of all.
"""

from __future__ import annotations

import msgspec

from front.metrics import FrontMetrics, Numbers
from python_backends.watching.board import Board, front_name


class SharedMetrics:
    def __init__(self, metrics: FrontMetrics, board: Board, number: int, num_processes: int) -> None:
        """`number`: of this process."""
        self._metrics = metrics
        self._board = board
        self._number = number
        self._others = [each for each in range(num_processes) if each != number]

    def beat(self) -> None:
        """Shows the launcher that this process lives, and the other processes its numbers."""
        name = front_name(self._number)
        if self._others:
            self._board.write(name, msgspec.json.encode(self._metrics.numbers))
        else:
            self._board.beat(name)

    def of_all(self) -> Numbers:
        total = self._metrics.numbers.copy()
        for number in self._others:
            said = self._board.read(front_name(number))
            if said:
                total.add(msgspec.json.decode(said, type=Numbers))
        return total
