"""Which stop word ended an answer: the ensemble gives the tokens, and those behind the text begin with it."""

from __future__ import annotations

from collections.abc import Sequence

from client.wire import Piece
from front.model import Model


class StoppedBy:
    """Follows the pieces of one answer in a chat."""

    def __init__(self, words: Sequence[str], model: Model) -> None:
        self._words = words
        self._model = model
        self._spelled = bytearray()  # of all tokens
        self._num_bytes = 0  # of the answer's text
        self._last = -1

    def add(self, piece: Piece) -> None:
        self._num_bytes += len(piece.text.encode())
        for token in piece.output_ids:
            self._spelled += self._model.spelled(token, not self._spelled)[1]
            self._last = token

    @property
    def word(self) -> str | None:
        """None: none of them ended it."""
        if self._last in self._model.end_ids:
            return None
        found = self._spelled[self._num_bytes :].decode("utf-8", "replace")
        return next((word for word in self._words if found.startswith(word)), None)
