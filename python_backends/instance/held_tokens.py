"""Tokens that wait in the instance for those of the next steps: each frame costs the scheduler model a turn, and most can wait.

An answer's first token and its last go out at once, like all other messages, and what was held before goes with them. `Flush` says
that whatever has come may go on to clients: the next tokens would come later than the scheduler model wants the oldest to wait. All
times are seconds of one monotonic clock. Used by the instance's loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from python_backends.nouns.messages import Flush, FromInstance
from python_backends.nouns.step import Tokens


class HeldTokens:
    """With an `interval_s` of 0 nothing is held, and nothing need be flushed."""

    def __init__(self) -> None:
        self.interval_s = 0.0
        self._held: list[FromInstance] = []
        self._oldest_s = math.inf  # when the first token came that is not flushed yet

    def put(self, messages: Sequence[FromInstance], now_s: float) -> list[FromInstance]:
        """Takes messages in; returns those that are to be sent now, in order."""
        self._held += messages
        if self.interval_s and any(isinstance(message, Tokens) for message in messages):
            self._oldest_s = min(self._oldest_s, now_s)
        return [] if self.interval_s and all(map(_can_wait, messages)) else self._take()

    def due(self, next_s: float) -> list[FromInstance]:
        """What is to be sent now because no more tokens come before `next_s`; infinite: none are expected."""
        if next_s <= self._oldest_s + self.interval_s:
            return []
        self._oldest_s = math.inf
        return [*self._take(), Flush()]

    def _take(self) -> list[FromInstance]:
        held, self._held = self._held, []
        return held


def _can_wait(message: FromInstance) -> bool:
    """Tokens of which none is the first of an answer or the last."""
    return isinstance(message, Tokens) and not message.finishes.any() and bool(message.indices.all())
