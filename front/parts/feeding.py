"""Puts the tokens and the text of an answer together: the text comes when it is certain, and some tokens have
none. So a marker gets its place among the characters by the tokens' own bytes, and no character is passed on
before the ensemble has sent it.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from client.wire import Piece
from front.parts.machine import Tokens


class Vocabulary(Protocol):
    """How tokens are spelled."""

    def bytes_of(self, token: int, is_first: bool) -> bytes | None:
        """None: the token has no text. `is_first`: a text begins with it."""
        ...


class Feeding:
    """The pieces of one answer."""

    def __init__(
        self, vocabulary: Vocabulary, marks: Mapping[int, str], tokens: Tokens, continues: bool
    ) -> None:
        """`marks`: the texts of tokens that are marks. `continues`: no text begins with the answer."""
        self._vocabulary = vocabulary
        self._marks = marks
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[tuple[str, int]] = deque()  # a text, and how many characters are shown of it
        self._ends: list[int] = []  # of each token: how many characters there are with it
        self._num_spelled = 0
        self._num_due = 0  # characters that the ensemble has sent, and that wait
        self._is_first = not continues

    def add(self, piece: Piece) -> str:
        """Returns what is certain now, with a character for each marker."""
        self._num_due += len(piece.text)
        for token in piece.output_ids:
            self._spell(token)
            self._ends.append(self._num_spelled)
        if piece.finish_reason:
            self._text(self._decoder.decode(b"", True))
        return self._certain() + self._unknown(piece)

    def tokens_of(self, begin: int, end: int) -> range:
        """Those that have a part of these characters, by their numbers in the answer. Of tokens that share a
        character the last one has it, and the others stand where it begins.
        """
        first = bisect_right(self._ends, begin)
        while first and begin == self._ends[first - 1] == (self._ends[first - 2] if first > 1 else 0):
            first -= 1
        return range(first, min(bisect_left(self._ends, end) + 1, len(self._ends)))

    def _spell(self, token: int) -> None:
        data = self._vocabulary.bytes_of(token, self._is_first)
        mark = self._marks.get(token)
        if data is None:
            self._text(self._decoder.decode(b"", True))
            self._decoder.reset()
            if mark is not None:
                self._wait(self._tokens.characters[mark], 0)
            return
        self._is_first = False
        text = self._decoder.decode(data)
        if mark is None or not text.endswith(mark):
            self._text(text)
            return
        self._text(text.removesuffix(mark))
        self._wait(self._tokens.characters[mark], len(mark))

    def _text(self, text: str) -> None:
        if text:
            self._wait(text, len(text))

    def _wait(self, text: str, num_shown: int) -> None:
        self._waiting.append((text, num_shown))
        self._num_spelled += len(text)

    def _certain(self) -> str:
        found = []
        while self._waiting:
            text, shown = self._waiting[0]
            if shown <= self._num_due:
                self._waiting.popleft()
                self._num_due -= shown
                found.append(text)
                continue
            if self._num_due and len(text) == shown:  # no marker: a part of it is certain
                found.append(text[: self._num_due])
                self._waiting[0] = (text[self._num_due :], shown - self._num_due)
                self._num_due = 0
            break
        return "".join(found)

    def _unknown(self, piece: Piece) -> str:
        """Text without tokens, as other engines may give it."""
        if self._waiting or not self._num_due or piece.output_ids:
            return ""
        found, self._num_due = piece.text[-self._num_due :], 0
        return found
