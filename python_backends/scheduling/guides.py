"""Which waiting sequences may get a slot although their answers follow a guide: those whose matcher is made.

Makes none: the loop says how to ask for them, and takes what is missing. Called by the admission and the
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.waiting import WaitingList

MOST_MISSING = 16  # sequences whose guides are prepared at the same time


class GuidesOfWaiting:
    def __init__(self, waiting: WaitingList) -> None:
        self._waiting = waiting
        self._is_ready: Callable[[Sequence], bool] | None = None
        self._missing: list[Sequence] = []

    @property
    def missing(self) -> list[Sequence]:
        """The first sequences that were not ready when slots were last given."""
        return self._missing

    def wait_for(self, is_ready: Callable[[Sequence], bool]) -> None:
        """From now on sequences with guides get a slot when they are ready."""
        self._is_ready = is_ready

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether its answer follows no guide, or one whose matcher is made."""
        return self._is_ready is None or not sequence.request.sampling.grammar or self._is_ready(sequence)

    def seatable(self, sequences: Iterable[Sequence]) -> Iterator[Sequence]:
        """Those of `sequences`, in the order of their turns, that are ready. Lazy. Notes the first that are
        not. A sequence that has been passed over for too long lets none go before it.
        """
        self._missing = []
        for sequence in sequences:
            if self.is_ready(sequence):
                yield sequence
                continue
            if len(self._missing) < MOST_MISSING:
                self._missing.append(sequence)
            if self._waiting.is_overdue(sequence):
                return

    def forget_missing(self) -> None:
        """They may be ready now."""
        self._missing = []
