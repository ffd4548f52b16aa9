"""The tokens of an answer as text, for log-probabilities."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from client.wire import Piece
from front.model import Model

Scored = tuple[int, float]  # a token and its log-probability


class TokenTexts:
    """Spells the tokens of one answer, in their order. Those that end it have no text and are left out."""

    def __init__(self, model: Model, ends: Collection[int], continues_text: bool) -> None:
        self._model = model
        self._ends = model.end_ids.union(ends)
        self._is_first = not continues_text

    def entries(self, piece: Piece) -> list[dict[str, Any]]:
        """Returns an entry for each token of `piece`: token, bytes, logprob, top_logprobs."""
        return [self._entry(scored, top) for scored, top in _scored(piece) if scored[0] not in self._ends]

    def _entry(self, scored: Scored, top: list[Scored]) -> dict[str, Any]:
        made = {**self._one(scored), "top_logprobs": [self._one(each) for each in top]}
        self._is_first = self._is_first and not made["token"]
        return made

    def _one(self, scored: Scored) -> dict[str, Any]:
        text, data = self._model.spelled(scored[0], self._is_first)
        return {"token": text, "logprob": scored[1], "bytes": list(data)}


def _scored(piece: Piece) -> Iterator[tuple[Scored, list[Scored]]]:
    tops = [list(zip(*each, strict=True)) for each in zip(piece.top_ids, piece.top_log_probs, strict=True)]
    for i, scored in enumerate(zip(piece.output_ids, piece.output_log_probs, strict=True)):
        yield scored, tops[i] if tops else []
