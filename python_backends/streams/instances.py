"""Which instances there are, as the streams know them. Changed by the submissions alone."""

from __future__ import annotations

from collections import Counter


class Instances:
    """The instances that there are: `ready` of them take requests; `num_known` also counts those that are
    being started again.
    """

    def __init__(self) -> None:
        self.ready: list[int] = []  # ascending
        self._known: set[int] = set()
        self._num_submits: Counter[int] = Counter()  # in the present session of each

    @property
    def num_known(self) -> int:
        return len(self._known)

    def add(self, instance: int) -> None:
        """It takes requests."""
        self._known.add(instance)
        self._num_submits[instance] = 0
        self.ready = sorted({*self.ready, instance})

    def count_submit(self, instance: int) -> int:
        """The number of the next Submit to `instance`."""
        self._num_submits[instance] += 1
        return self._num_submits[instance]

    def lose(self, instance: int) -> None:
        """It takes none until it is ready again."""
        self.ready = [each for each in self.ready if each != instance]

    def forget(self, instance: int) -> None:
        """It does not come again."""
        self.lose(instance)
        self._known.discard(instance)
