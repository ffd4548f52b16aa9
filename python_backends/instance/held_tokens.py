"""Delays tokens in the instance so that those of several steps travel in one message: each message costs the
scheduler model a turn.

An answer's first token and its last go out at once, like all other messages, and what was held before goes
with them. `Flush` says that whatever has come may go on to clients: the next tokens would come later than the
scheduler model wants the oldest to wait. All times are seconds of one monotonic clock. Used by the instance's
loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from python_backends.nouns.messages import Flush, FromInstance
from python_backends.nouns.step import Tokens


class HeldTokens:
    """With an `interval_s` of 0, no tokens are held and no `Flush` is needed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval_s = 0.0
        self._clock = clock
        self._held: list[FromInstance] = []
        self._oldest_s = math.inf  # when the oldest token came that no `Flush` has followed

    def put(self, messages: Sequence[FromInstance]) -> list[FromInstance]:
        """Adds messages; returns those that are to be sent now, in order."""
        self._held += messages
        if self.interval_s and any(isinstance(message, Tokens) for message in messages):
            self._oldest_s = min(self._oldest_s, self._clock())
        return [] if self.interval_s and all(map(_can_wait, messages)) else self._take()

    def due(self, next_s: float) -> list[FromInstance]:
        """All held messages and a `Flush`, if the oldest token can't wait for the next ones, expected at
        `next_s` (infinite: none).
        """
        if next_s <= self._oldest_s + self.interval_s:
            return []
        self._oldest_s = math.inf
        return [*self._take(), Flush()]

    def _take(self) -> list[FromInstance]:
        held, self._held = self._held, []
        return held


def _can_wait(message: FromInstance) -> bool:
    """Whether `message` has only tokens that are neither the first nor the last of an answer."""
    return isinstance(message, Tokens) and not message.finishes.any() and bool(message.indices.all())
