"""What has come of an answer, read from its beginning on, whatever its pieces are.

Functions that read are generators: they yield where the next piece is needed. Tokens that are markers are
single characters here, which no text has (surrogates), so they differ from the same letters in a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
Take = Callable[[str], object]  # what is told of a text

FIRST_MARKER = 0xD800
TOKEN = "\ud800-\udbff"  # in a class of a regular expression
IS_TOKEN = re.compile(f"[{TOKEN}]")
SPECIAL = re.compile(f'["\\\\{TOKEN}]')  # within a JSON string
NESTING = re.compile(f'["{{}}\\[\\]{TOKEN}]')
SCALAR_END = re.compile(f"[,\\]}}\\s{TOKEN}]")


def proper(text: str) -> str:
    """Without halves of pairs, which escapes in JSON may give."""
    return text.encode("utf-8", "replace").decode()


def as_json(text: str) -> str:
    """Returns a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


class BrokenError(Exception):
    """What comes is not what was expected."""


class OverError(Exception):
    """The answer is over, in the middle of something."""


class Markers:
    """Texts to look for. The longest that fits is found."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = sorted(set(texts), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        self._longest = max(map(len, self.texts), default=1)

    def find(self, text: str, start: int) -> re.Match[str] | None:
        return self._pattern.search(text, start)

    def open_end(self, text: str, start: int) -> int:
        """Returns where the first end of `text` begins with which one of them may begin."""
        for at in range(max(start, len(text) - self._longest + 1), len(text)):
            if any(marker.startswith(text[at:]) for marker in self.texts):
                return at
        return len(text)


class Came:
    """What has come and is not yet read."""

    def __init__(self, spelled: Mapping[str, str], hidden: Iterable[str] = ()) -> None:
        """`spelled`: the letters of each marker, by its character. `hidden`: characters of those that answers
        don't show.
        """
        self._spelled = {ord(character): letters for character, letters in spelled.items()}
        self._shown = {**self._spelled, **{ord(character): "" for character in hidden}}
        self._text = ""
        self._at = 0
        self._is_over = False
        self._kept: list[str] | None = None
        self.num_taken = 0  # characters

    def add(self, text: str, is_over: bool) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0
        self._is_over = is_over

    def letters(self, text: str) -> str:
        """With all markers as letters."""
        return text.translate(self._spelled)

    def shown(self, text: str) -> str:
        """As the answer shows it."""
        return text.translate(self._shown)

    def keep(self) -> None:
        """From here on what is read is kept for `kept`."""
        self._kept = []

    def kept(self) -> str:
        """Returns what was read since `keep`, and keeps no more."""
        found, self._kept = "".join(self._kept or ()), None
        return found

    def take(self, count: int) -> str:
        """The next characters, which have come."""
        found = self._text[self._at : self._at + count]
        self._at += count
        self.num_taken += len(found)
        if self._kept is not None:
            self._kept.append(found)
        return found

    def more(self) -> Reading[None]:
        """Raises OverError if no more comes."""
        if self._is_over:
            raise OverError
        yield

    def peek(self) -> Reading[str]:
        """The next character. Raises OverError."""
        while self._at >= len(self._text):
            yield from self.more()
        return self._text[self._at]

    def is_over(self) -> Reading[bool]:
        """Whether nothing comes any more."""
        while self._at >= len(self._text) and not self._is_over:
            yield
        return self._at >= len(self._text)

    def skip_spaces(self) -> Reading[None]:
        while (yield from self.peek()).isspace():
            self.take(1)

    def starts(self, literal: str) -> Reading[bool]:
        """Whether the next characters are those; then they are taken."""
        while len(have := self._text[self._at : self._at + len(literal)]) < len(literal):
            if not literal.startswith(have) or self._is_over:
                return False
            yield
        if have == literal:
            self.take(len(literal))
        return have == literal

    def until(self, markers: Markers, tell: Take, as_it_is: bool = False) -> Reading[str]:
        """Tells what stands before the next marker, as answers show it, and returns the marker; empty: the
        answer is over.
        """
        while True:
            found = markers.find(self._text, self._at)
            end = found.start() if found else len(self._text)
            if found is None and not self._is_over:
                end = markers.open_end(self._text, self._at)
            if end > self._at:
                before = self.take(end - self._at)
                tell(before if as_it_is else self.shown(before))
            if found is not None:
                return self.take(len(found.group()))
            if self._is_over:
                return ""
            yield

    def before(self, pattern: re.Pattern[str], tell: Take) -> Reading[str]:
        """Tells what stands before the next character that `pattern` finds, and returns that character, which
        is not taken. Raises OverError.
        """
        while True:
            found = pattern.search(self._text, self._at)
            end = found.start() if found else len(self._text)
            if end > self._at:
                tell(self.take(end - self._at))
            if found is not None:
                return found.group()
            yield from self.more()

    def _token(self, ends: str, tell: Take) -> None:
        """Takes a marker. Raises BrokenError if it ends what is read."""
        if self._text[self._at] in ends:
            raise BrokenError
        tell(self.shown(self.take(1)))

    def string(self, tell: Take, ends: str) -> Reading[None]:
        """A JSON string, as it is written. `ends`: markers that end whatever they stand in."""
        tell(self.take(1))
        while (found := (yield from self.before(SPECIAL, tell))) != '"':
            if found != "\\":
                self._token(ends, tell)
                continue
            backslash = self.take(1)
            if IS_TOKEN.match((yield from self.peek())):
                tell(backslash)
                self._token(ends, tell)
            else:
                tell(backslash + self.take(1))
        tell(self.take(1))

    def decoded(self, ends: str, longest: int = 0) -> Reading[str]:
        """The text of a JSON string. Raises BrokenError, also if it has more than `longest` characters."""
        pieces: list[str] = []
        length = 0

        def tell(text: str) -> None:
            nonlocal length
            length += len(text)
            if longest and length > longest:
                raise BrokenError
            pieces.append(text)

        if (yield from self.peek()) != '"':
            raise BrokenError
        yield from self.string(tell, ends)
        try:
            found = json.loads("".join(pieces), strict=False)
        except ValueError:
            raise BrokenError from None
        return proper(str(found))

    def value(self, tell: Take, ends: str) -> Reading[None]:
        """A JSON value, as it is written. Raises BrokenError."""
        first = yield from self.peek()
        if first == '"':
            yield from self.string(tell, ends)
        elif first in "{[":
            yield from self._nested(tell, ends)
        else:
            yield from self._scalar(tell)

    def _nested(self, tell: Take, ends: str) -> Reading[None]:
        depth = 0
        while True:
            found = yield from self.before(NESTING, tell)
            if found == '"':
                yield from self.string(tell, ends)
            elif found in "{[}]":
                depth += 1 if found in "{[" else -1
                tell(self.take(1))
                if depth == 0:
                    return
            else:
                self._token(ends, tell)

    def _scalar(self, tell: Take) -> Reading[None]:
        has_come = False

        def noted(text: str) -> None:
            nonlocal has_come
            has_come = True
            tell(text)

        yield from self.before(SCALAR_END, noted)
        if not has_come:
            raise BrokenError
