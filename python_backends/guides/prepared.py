"""Matchers of answers that have begun: how they are made, and those that are made before they are wanted.

Called by `guides`, by several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from llguidance import LLMatcher

from python_backends.guides.errors import GuideError
from python_backends.guides.matcher import Matcher

MOST_PREPARED = 64  # matchers
PIECE = 64  # tokens that a matcher takes at once: no other thread runs meanwhile


class Followed(NamedTuple):
    """A grammar, and how far an answer has followed it."""

    grammar: str
    tokens: list[int]  # of the answer so far
    stop_ids: tuple[int, ...]

    def goes_on_from(self, earlier: Followed) -> bool:
        """Whether it is `earlier`, perhaps with more tokens."""
        return self._replace(tokens=self.tokens[: len(earlier.tokens)]) == earlier


class PreparedMatchers:
    """The latest ones. What they are for is known by its content: an answer that ended meanwhile leaves its
    matcher to others, until newer ones come.
    """

    def __init__(self) -> None:
        self._matchers: list[tuple[Followed, Matcher]] = []  # the oldest first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._matchers)

    def __contains__(self, followed: Followed) -> bool:
        with self._lock:
            return any(followed == each for each, _ in self._matchers)

    def add(self, followed: Followed, matcher: Matcher) -> None:
        with self._lock:
            self._matchers = [*self._matchers, (followed, matcher)][-MOST_PREPARED:]

    def take(self, followed: Followed) -> Matcher | None:
        """The one that has come the furthest, which has then taken all tokens; None: there is none."""
        with self._lock:
            fitting = [each for each in self._matchers if followed.goes_on_from(each[0])]
            if not fitting:
                return None
            furthest = max(fitting, key=lambda each: len(each[0].tokens))
            self._matchers.remove(furthest)
        begun, matcher = furthest
        return matcher if _takes(matcher, followed.tokens[len(begun.tokens) :]) else None


def begun(compiled: LLMatcher, followed: Followed) -> Matcher:
    """One that has taken all tokens. Raises GuideError."""
    matcher = Matcher(compiled.deep_copy(), followed.stop_ids)
    if not _takes(matcher, followed.tokens):
        raise GuideError("the tokens that were delivered before do not follow the guide")
    return matcher


def _takes(matcher: Matcher, tokens: Sequence[int]) -> bool:
    """Has it take `tokens`. Whether it may."""
    pieces = (tokens[first : first + PIECE] for first in range(0, len(tokens), PIECE))
    return all(matcher.take(piece) for piece in pieces)
