"""Which instances there are, as the streams know them. Changed by the submissions alone."""

from __future__ import annotations

from collections import Counter


class Instances:
    """The instances that there are: `ready` of them take requests; `num_known` also counts those that are
    being started again. Those that are to be empty are in neither.
    """

    def __init__(self) -> None:
        self._ready: list[int] = []  # ascending
        self._known: set[int] = set()
        self._closed: frozenset[int] = frozenset()
        self._num_submits: Counter[int] = Counter()  # in the present session of each

    @property
    def ready(self) -> list[int]:
        """Ascending."""
        return [each for each in self._ready if each not in self._closed]

    @property
    def num_known(self) -> int:
        return len(self._known - self._closed)

    def is_known(self, instance: int) -> bool:
        """Whether it takes requests, or will when it has been started again."""
        return instance in self._known - self._closed

    def close(self, instances: frozenset[int]) -> None:
        """These, and no others, are to be empty."""
        self._closed = instances

    def add(self, instance: int) -> None:
        """It takes requests."""
        self._known.add(instance)
        self._num_submits[instance] = 0
        self._ready = sorted({*self._ready, instance})

    def count_submit(self, instance: int) -> int:
        """The number of the next Submit to `instance`."""
        self._num_submits[instance] += 1
        return self._num_submits[instance]

    def lose(self, instance: int) -> None:
        """It takes none until it is ready again."""
        self._ready = [each for each in self._ready if each != instance]

    def forget(self, instance: int) -> None:
        """It does not come again."""
        self.lose(instance)
        self._known.discard(instance)
