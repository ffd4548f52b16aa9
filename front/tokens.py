"""The tokens of an answer, or of its prompt, as text, for log-probabilities."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from client.wire import Piece
from front.model import Model

Scored = tuple[int, float | None]  # a token and its log-probability; None: it has none


class TokenTexts:
    """Spells the tokens of one answer, in their order. Those that end it have no text and are left out."""

    def __init__(self, model: Model, ends: Collection[int], continues_text: bool) -> None:
        self._model = model
        self._ends = model.end_ids.union(ends)
        self._is_first = not continues_text

    def entries(self, piece: Piece) -> list[dict[str, Any]]:
        """Returns an entry for each token of `piece`: token, bytes, logprob, top_logprobs."""
        return [each for each in self.of_all(piece) if each is not None]

    def of_all(self, piece: Piece) -> list[dict[str, Any] | None]:
        """The same, and None for a token that ends the answer."""
        found = of_answer(piece)
        return [None if scored[0] in self._ends else self._entry(scored, top) for scored, top in found]

    def _entry(self, scored: Scored, top: list[Scored]) -> dict[str, Any]:
        made = entry(self._model, scored, top, self._is_first)
        self._is_first = self._is_first and not made["token"]
        return made


def entry(model: Model, scored: Scored, top: list[Scored], is_first: bool) -> dict[str, Any]:
    """Returns token, bytes, logprob, top_logprobs. `is_first`: a text begins with the token."""
    return {**_one(model, scored, is_first), "top_logprobs": [_one(model, each, is_first) for each in top]}


def of_answer(piece: Piece) -> Iterator[tuple[Scored, list[Scored]]]:
    """Yields the tokens of `piece`, and the most probable ones in their place."""
    return _scored(piece.output_ids, piece.output_log_probs, piece.top_ids, piece.top_log_probs)


def of_prompt(piece: Piece) -> Iterator[tuple[Scored, list[Scored]]]:
    """Yields the tokens of the prompt, if `piece` has them: before the first one none is probable."""
    if piece.prompt_ids:
        yield (piece.prompt_ids[0], None), []
    rest = piece.prompt_ids[1:], piece.prompt_log_probs, piece.prompt_top_ids, piece.prompt_top_log_probs
    yield from _scored(*rest)


def _one(model: Model, scored: Scored, is_first: bool) -> dict[str, Any]:
    text, data = model.spelled(scored[0], is_first)
    return {"token": text, "logprob": scored[1], "bytes": list(data)}


def _scored(
    ids: Sequence[int],
    log_probs: Sequence[float],
    top_ids: Sequence[Sequence[int]],
    top_log_probs: Sequence[Sequence[float]],
) -> Iterator[tuple[Scored, list[Scored]]]:
    tops: list[list[Scored]] = [
        list(zip(*each, strict=True)) for each in zip(top_ids, top_log_probs, strict=True)
    ]
    for i, scored in enumerate(zip(ids, log_probs, strict=True)):
        yield scored, tops[i] if tops else []
