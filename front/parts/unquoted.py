"""Reads objects as Gemma writes them, names without quotation marks and strings between tokens of their own,
and makes JSON of them.
"""

from __future__ import annotations

import json
import re

from front.parts.reading import TOKEN, BrokenError, Came, Markers, OverError, Reading, Take, as_json

WORD = re.compile(f'[{{}}\\[\\],:"\\s{TOKEN}]')  # behind a name, a number, true, false, null


class UnquotedReader:
    """Reads values of one call."""

    def __init__(self, quote: str, ends: str, came: Came) -> None:
        """`ends`: markers that end whatever they stand in."""
        self._quote = quote
        self._quotes = Markers((quote,))
        self._ends = ends
        self._came = came

    def value(self, tell: Take) -> Reading[None]:
        """Raises BrokenError, OverError."""
        yield from self._came.skip_spaces()
        first = yield from self._came.peek()
        if first == self._quote[0] and (yield from self._came.starts(self._quote)):
            yield from self._string(tell)
        elif first == '"':
            yield from self._came.string(tell, self._ends)
        elif first in "{[":
            yield from self._several(tell, first == "{")
        else:
            tell(_scalar((yield from self._word())))

    def _string(self, tell: Take) -> Reading[None]:
        tell('"')
        if not (yield from self._came.until(self._quotes, lambda text: tell(as_json(text)[1:-1]))):
            raise OverError
        tell('"')

    def _several(self, tell: Take, has_names: bool) -> Reading[None]:
        tell(self._came.take(1))
        end = "}" if has_names else "]"
        is_first = True
        while True:
            yield from self._came.skip_spaces()
            first = yield from self._came.peek()
            if first == end:
                tell(self._came.take(1))
                return
            if first == ",":
                self._came.take(1)
                continue
            tell("" if is_first else ", ")
            is_first = False
            if has_names:
                yield from self._name(tell)
            yield from self.value(tell)

    def _name(self, tell: Take) -> Reading[None]:
        first = yield from self._came.peek()
        if first == self._quote[0] and (yield from self._came.starts(self._quote)):
            yield from self._string(tell)
        elif first == '"':
            yield from self._came.string(tell, self._ends)
        else:
            tell(as_json((yield from self._word())))
        yield from self._came.skip_spaces()
        if (yield from self._came.peek()) != ":":
            raise BrokenError
        self._came.take(1)
        tell(": ")

    def _word(self) -> Reading[str]:
        pieces: list[str] = []
        yield from self._came.before(WORD, pieces.append)
        if not pieces:
            raise BrokenError
        return "".join(pieces)


def _scalar(word: str) -> str:
    try:
        json.loads(word)
    except ValueError:
        return as_json(word)
    return word
