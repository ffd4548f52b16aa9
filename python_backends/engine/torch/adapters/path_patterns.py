"""Patterns of an adapter's configuration (`rank_pattern`, `alpha_pattern`), matched as PEFT matches them: to
the end of a module's path. They come from a file that anybody may have written, and `re` may take for ever
with a few characters. So a pattern is followed here by the places that it can have reached, which are no more
than the path has characters; what that can't do is refused.

Used by `peft_files`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache

MOST_CHARACTERS = 1000  # of a pattern that is more than a name
MOST_DEPTH = 10  # of parentheses
NAME = re.compile(r"\^?(?:[\w.\-]|\\\.)*\$?")
ONE = re.compile(r"\\[dw]|\\[^a-zA-Z0-9\s]|\[\^?(?:\w-\w|[\w.]|\\[dw.\-])+-?\]|[^\\()|*+?{}\[\]^$]")
REPEAT = re.compile(r"([*+?])\??")  # a lazy one reaches the same places

Places = frozenset[int]  # in a path
Reach = Callable[[str, Places], Places]  # from places in a path to those after what it matches


class PatternError(ValueError):
    """This pattern is not one, or can't be matched here. The message says why."""


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> Callable[[str], bool]:
    """Whether the end of a path matches. Raises PatternError."""
    if is_name(pattern):
        return re.compile(rf"(.*\.)?({pattern})$").match  # type: ignore[return-value]
    reach = _Reader(pattern).read()
    return lambda path: len(path) in reach(path, _begins(path))


def is_name(pattern: str) -> bool:
    """It has nothing but a name, or a path, so that `re` takes no time to speak of."""
    return len(pattern) <= MOST_CHARACTERS and NAME.fullmatch(pattern) is not None


def _begins(path: str) -> Places:
    return frozenset((0, *(place + 1 for place, character in enumerate(path) if character == ".")))


class _Reader:
    """Reads one pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._place, self._depth = pattern, 0, 0
        self._repeats = 0  # those that were read

    def read(self) -> Reach:
        if len(self._pattern) > MOST_CHARACTERS:
            raise PatternError(f"it has more than {MOST_CHARACTERS} characters")
        reach = self._choice()
        if self._place < len(self._pattern):
            raise PatternError("a parenthesis is closed that was not opened")
        return reach

    def _choice(self) -> Reach:
        """Alternatives, up to the end or a closing parenthesis."""
        ways = [self._sequence()]
        while self._take("|"):
            ways.append(self._sequence())
        return lambda path, places: frozenset().union(*(way(path, places) for way in ways))

    def _sequence(self) -> Reach:
        parts: list[Reach] = []
        while self._place < len(self._pattern) and self._pattern[self._place] not in "|)":
            parts.append(self._repeated())

        def reach(path: str, places: Places) -> Places:
            for part in parts:
                places = part(path, places)
            return places

        return reach

    def _repeated(self) -> Reach:
        if self._take("^"):
            return lambda path, places: places & {0}
        if self._take("$"):
            return lambda path, places: places & {len(path)}
        before = self._repeats
        part = self._part()
        found = REPEAT.match(self._pattern, self._place)
        if found is None:
            return part
        if self._repeats > before:
            raise PatternError("a repetition inside of a repetition is not supported")
        self._repeats += 1
        self._place = found.end()
        return _repeat(part, found[1])

    def _part(self) -> Reach:
        """A character, or a group in parentheses."""
        if self._take("("):
            return self._group()
        found = ONE.match(self._pattern, self._place)
        if found is None:
            raise PatternError(f"{self._pattern[self._place :]!r:.20} is not supported")
        self._place = found.end()
        return _one(found[0])

    def _group(self) -> Reach:
        self._take("?:")
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise PatternError(f"it has more than {MOST_DEPTH} parentheses inside of one another")
        reach = self._choice()
        if not self._take(")"):
            raise PatternError("a parenthesis is not closed")
        self._depth -= 1
        return reach

    def _take(self, text: str) -> bool:
        is_there = self._pattern.startswith(text, self._place)
        self._place += len(text) if is_there else 0
        return is_there


def _one(text: str) -> Reach:
    """A pattern of one character: `re` can't take long with it."""
    try:
        matches = cache(re.compile(text).fullmatch)
    except re.error as error:
        raise PatternError(str(error)) from error

    def reach(path: str, places: Places) -> Places:
        return frozenset(place + 1 for place in places if place < len(path) and matches(path[place]))

    return reach


def _repeat(part: Reach, how: str) -> Reach:
    def reach(path: str, places: Places) -> Places:
        found = new = places if how != "+" else part(path, places)
        while new and how != "?":
            new = part(path, new) - found
            found |= new
        return found | part(path, places) if how == "?" else found

    return reach
