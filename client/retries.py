"""Decides whether to try a request again, and after which pause. Only computes: the clients wait.

A request is tried again only after UNAVAILABLE, and only if no text has arrived: else the same text would
come twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from .errors import GaplessError, UnavailableError


@dataclass(frozen=True, slots=True)
class Retries:
    """Pauses double from `first_s` to `most_s`. Each is drawn from the upper half of its range, so that
    clients do not return at the same time.
    """

    attempts: int = 5  # including the first one; 1: never try again
    first_s: float = 0.25
    most_s: float = 4.0
    draw: Callable[[], float] = random.random  # between 0 and 1

    def pause_s(self, failed: int) -> float:
        """Returns the pause after this many failed attempts."""
        return min(self.most_s, self.first_s * 2.0 ** (failed - 1)) * (0.5 + self.draw() / 2)


class Call:
    """The attempts of one call: how many failed, whether text has arrived, and the time that is left."""

    def __init__(
        self, retries: Retries, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._retries = retries
        self._clock = clock
        self._began_s = clock()
        self._end_s = None if timeout_s is None else self._began_s + timeout_s
        self._failed = 0
        self.has_begun = False

    def left_s(self) -> float | None:
        """Returns the time that is left; None: no limit."""
        return None if self._end_s is None else max(0.0, self._end_s - self._clock())

    def spent_s(self) -> float:
        """Returns the time since the call began."""
        return self._clock() - self._began_s

    def pause_s(self, error: GaplessError) -> float:
        """Returns how long to wait after an attempt has failed with `error`. Raises `error` if there should
        be no further attempt.
        """
        self._failed += 1
        if (
            not isinstance(error, UnavailableError)
            or self.has_begun
            or self._failed >= self._retries.attempts
        ):
            raise error
        pause_s, left_s = self._retries.pause_s(self._failed), self.left_s()
        if left_s is not None and pause_s >= left_s:
            raise error
        return pause_s
