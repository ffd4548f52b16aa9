"""Which row of the page each request has that is in a slot: the same one until it ends, so that it can be
followed. The numbers are the page's own; which slot of the batch a request has, its instance alone knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Place = tuple[int, int]  # instance, row


class Rows:
    def __init__(self) -> None:
        self._places: dict[int, Place] = {}  # of open requests, the last that each had; by its number

    def of(self, requests: Sequence[Mapping[str, Any]], num_slots: Mapping[int, int]) -> dict[int, int]:
        """Returns the row within its instance of each request that has a slot, by its number. One that
        waits, as after a crash, finds its row again. `num_slots`: by instance.
        """
        instances = {each["request"]: each["instance"] for each in requests if not each["place"]}
        open_now = {each["request"] for each in requests}
        self._places = {number: place for number, place in self._places.items() if number in open_now}
        taken: set[Place] = set()
        for number, instance in instances.items():
            place = self._places.get(number, (instance, -1))
            if place[0] == instance and place[1] >= 0 and place not in taken:
                taken.add(place)
            else:
                self._places.pop(number, None)
        for number, instance in instances.items():
            if number not in self._places:
                self._places[number] = self._free(
                    instance, taken, max(num_slots.get(instance, 0), len(instances))
                )
                taken.add(self._places[number])
        return {number: self._places[number][1] for number in instances}

    def _free(self, instance: int, taken: set[Place], num_rows: int) -> Place:
        """The first that no request has; rather one that no request had which waits again."""
        kept = set(self._places.values())
        free = [(instance, row) for row in range(num_rows) if (instance, row) not in taken]
        return min(free, key=lambda place: (place in kept, place))
