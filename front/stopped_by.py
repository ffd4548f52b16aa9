"""Which stop word ended an answer: the ensemble gives the tokens, and those behind the text begin with it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from client.wire import Piece
from front.model import Model


class StoppedBy:
    """Follows the pieces of one answer in a chat."""

    def __init__(self, words: Sequence[str], model: Model, continues: bool) -> None:
        """`continues`: the answer goes on with a text; else a text begins with it."""
        self._words = words
        self._model = model
        self._continues = continues
        self._tokens: list[tuple[bytes, bool]] = []  # how each is spelled, and whether answers show it
        self._num_characters = 0  # of the answer's text
        self._last = -1

    def add(self, piece: Piece) -> None:
        self._num_characters += len(piece.text)
        for token in piece.output_ids:
            is_first = not self._tokens and not self._continues
            is_shown = self._model.bytes_of(token, is_first) is not None
            self._tokens.append((self._model.spelled(token, is_first)[1], is_shown))
            self._last = token

    @property
    def word(self) -> str | None:
        """None: none of them ended it."""
        if self._last in self._model.end_ids:
            return None
        found = self._behind_the_text()
        return next((word for word in self._words if found.startswith(word)), None)

    def _behind_the_text(self) -> str:
        """What the tokens spell there. Within the text those that answers don't show take no place."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        left, behind = self._num_characters, []
        for spelled, is_shown in self._tokens:
            text = decoder.decode(spelled) if is_shown or not left else decoder.decode(b"", True)
            behind.append(text[left:])
            left = max(0, left - len(text))
        return "".join(behind) + decoder.decode(b"", True)[left:]
