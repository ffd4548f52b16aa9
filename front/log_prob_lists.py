"""Log-probabilities of a completion: lists with an element for each token. Where the prompt is echoed, its
tokens go before the answer's.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Collection, Iterator
from typing import Any

from client.wire import Piece
from front.model import Model
from front.tokens import entry, of_answer, of_prompt


class LogProbLists:
    """Of one answer, whose pieces come in order. Tokens that end it are left out, unless the prompt is
    echoed: programs that compare prompts count on an element for each token that was generated.
    """

    def __init__(self, model: Model, ends: Collection[int], has_prompt: bool) -> None:
        self._model = model
        self._ends = model.end_ids.union(ends)
        self._has_prompt = has_prompt
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._offset = 0  # of the next token in the text

    def of(self, piece: Piece) -> dict[str, Any]:
        """Returns the lists. The most probable tokens include the token itself; the first token of a prompt
        has neither.
        """
        placed = list(self._placed(piece))
        entries = [each for each, _ in placed]
        return {
            "tokens": [each["token"] for each in entries],
            "token_logprobs": [each["logprob"] for each in entries],
            "top_logprobs": [_most_probable(each) for each in entries],
            "text_offset": [offset for _, offset in placed],
        }

    def _placed(self, piece: Piece) -> Iterator[tuple[dict[str, Any], int]]:
        """Yields an entry for each token, and where it begins in the text; in the middle of a character,
        where that does.
        """
        for scored, top in of_prompt(piece):
            made = entry(self._model, scored, top, is_first=self._offset == 0)
            # what the tokenizer puts around a text is not written in it
            is_written = self._has_text(scored[0]) or piece.text.startswith(made["token"], self._offset)
            yield made, self._move(made, is_written)
        for scored, top in of_answer(piece):
            is_end = scored[0] in self._ends
            if self._has_prompt or not is_end:
                made = entry(self._model, scored, top, is_first=False)
                yield made, self._move(made, self._has_text(scored[0]) and not is_end)

    def _has_text(self, token: int) -> bool:
        """Whether answers write it."""
        return self._model.bytes_of(token, False) is not None

    def _move(self, made: dict[str, Any], is_written: bool) -> int:
        """Returns where a token begins; the next one begins after it if it is written."""
        begin = self._offset
        self._offset += len(self._decode(bytes(made["bytes"]))) if is_written else 0
        return begin


def _most_probable(made: dict[str, Any]) -> dict[str, float] | None:
    """By text; of several tokens with the same text the most probable one."""
    if made["logprob"] is None:
        return None
    return {each["token"]: each["logprob"] for each in (made, *reversed(made["top_logprobs"]))}
