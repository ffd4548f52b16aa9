"""The sequences of one instance, those that wait and those that run, and their order of arrival.

Changed only by the slot scheduler.
"""

from __future__ import annotations

import math

from python_backends.scheduling.state.sequence import Sequence


class Roster:
    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}  # by request
        self._latest_s = self._last_place = -math.inf  # the latest arrival so far, and its place
        self.num_high_priority = 0  # sequences of a priority above 0

    def __len__(self) -> int:
        return len(self._sequences)

    def request_ids(self) -> list[int]:
        return list(self._sequences)

    def find(self, request_id: int) -> Sequence | None:
        return self._sequences.get(request_id)

    def enter(self, sequence: Sequence) -> None:
        """Takes `sequence`, whose request has none here, and gives it its place in the order of arrival:
        after all that came before it, even if it has been at another instance meanwhile. Of those that came
        here at the same time the first one to enter is first.
        """
        sequence.arrival = self._place(sequence.arrived_s)
        self._sequences[sequence.request_id] = sequence
        self.num_high_priority += sequence.request.priority > 0

    def leave(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request_id]
        self.num_high_priority -= sequence.request.priority > 0

    def _place(self, arrived_s: float) -> float:
        if arrived_s < self._latest_s:
            return arrived_s
        self._latest_s = arrived_s
        self._last_place = max(arrived_s, math.nextafter(self._last_place, math.inf))
        return self._last_place
