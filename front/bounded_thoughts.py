"""Thoughts that are closed when they have had their tokens: a sentence ends them, and the answer goes on.

The ensemble is asked for the tokens of the budget first. Then it is asked for the rest with `delivered_ids`,
as after its death. So the place depends on the tokens alone, not on the pieces in which they come.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, Unpack

from client.errors import RefusedError
from client.parameters import Parameters
from client.wire import Piece, Prompt
from front.answers import Asker
from front.errors import refused
from front.model import Model
from front.parameters import UNTIL_THE_CONTEXT_ENDS
from front.parts.answer import Parts, Shape

SENTENCE = "\n\nI have thought long enough, so I answer now.\n"


def bounded(client: Asker, model: Model, shape: Shape, tokens: Any, field: str) -> Asker:
    """Returns what asks for answers whose thoughts have at most `tokens` tokens; None, or a model that writes
    no thoughts: any number. Raises ProblemError.
    """
    if tokens is None:
        return client
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise refused(field, f" = {str(tokens)[:40]}: must be a whole number, at least 1")
    has_thoughts = model.form is not None and bool(model.form.thoughts)
    return BoundedThoughts(client, model, shape, tokens) if has_thoughts else client


class BoundedThoughts:
    """Asks for answers of one shape."""

    def __init__(self, client: Asker, model: Model, shape: Shape, tokens: int) -> None:
        self._client, self._model, self._shape, self._tokens = client, model, shape, tokens
        pairs = model.form.thoughts if model.form is not None else ()
        tokenizer = model.checkpoint.tokenizer
        texts = {closes: f"{SENTENCE}{closes}\n\n" for _, closes in pairs}
        self._closing: dict[str, tuple[int, ...]] = {
            closes: tuple(tokenizer.encode(text, add_special_tokens=False).ids)
            for closes, text in texts.items()
        }

    async def stream(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> AsyncGenerator[Piece, None]:
        """As AsyncClient's."""
        came: list[Piece] = []
        if self._is_long(parameters):
            with contextlib.suppress(RefusedError):  # the context may have fewer left; the next one says
                async with contextlib.aclosing(
                    self._client.stream(prompt, **self._first(parameters))
                ) as pieces:
                    async for piece in pieces:
                        came.append(piece)
                        if piece.finish_reason != "length":
                            yield piece
        if came and came[-1].finish_reason != "length":
            return
        closed = self._closed(came, parameters)
        for piece in closed:
            yield piece
        # a last piece that closes no thought is asked for again: which of its text was certain is not known
        delivered = [token for piece in (*came[:-1], *closed) for token in piece.output_ids]
        async with contextlib.aclosing(self._rest(prompt, parameters, delivered)) as pieces:
            async for piece in pieces:
                yield replace(piece, **_counts(came[0])) if came else piece

    def _is_long(self, parameters: Parameters) -> bool:
        """Whether `max_tokens` leaves room for an answer after a thought that was closed."""
        longest = parameters.get("max_tokens", UNTIL_THE_CONTEXT_ENDS)
        return longest < 0 or longest > self._tokens + max(map(len, self._closing.values()))

    def _first(self, parameters: Parameters) -> Parameters:
        first: Parameters = {**parameters, "return_output_ids": True, "max_tokens": self._tokens}
        if "min_tokens" in first:
            first["min_tokens"] = min(first["min_tokens"], self._tokens)
        return first

    async def _rest(
        self, prompt: Prompt, parameters: Parameters, delivered: list[int]
    ) -> AsyncGenerator[Piece, None]:
        """Up to the end of the context, if it has fewer left than asked for; with none left, an end."""
        asked: Parameters = {**parameters, "return_output_ids": True, "delivered_ids": delivered}
        if not delivered:
            asked = parameters
        try:
            async with contextlib.aclosing(self._client.stream(prompt, **asked)) as pieces:
                async for piece in pieces:
                    yield piece
        except RefusedError:
            if not delivered:
                raise
            asked["max_tokens"] = UNTIL_THE_CONTEXT_ENDS
            try:
                async with contextlib.aclosing(self._client.stream(prompt, **asked)) as pieces:
                    async for piece in pieces:
                        yield piece
            except RefusedError:  # what was delivered was taken with a longer context
                yield Piece("", "length", num_output_tokens=0)

    def _closed(self, came: Sequence[Piece], parameters: Parameters) -> list[Piece]:
        """The last of the pieces that `came`, and one that closes the thought; empty: none is open."""
        parts = Parts(self._model, self._shape)
        for piece in came:
            parts.add(piece)
        closing = self._closing.get(parts.open_thought)
        if closing is None:
            return []
        shown = b"".join(self._model.bytes_of(token, False) or b"" for token in closing)
        scores = (0.0,) * len(closing) if parameters.get("return_log_probs") else ()  # nothing else may come
        has_tops = bool(parameters.get("num_top_log_probs"))
        last = replace(came[-1], finish_reason="")
        closes = replace(
            last,
            text=shown.decode("utf-8", "replace"),
            num_output_tokens=len(closing),
            output_ids=closing,
            output_log_probs=scores,
            top_ids=tuple((token,) for token in closing) if has_tops else (),
            top_log_probs=((0.0,),) * len(closing) if has_tops else (),
        )
        return [last, closes]


def _counts(first: Piece) -> dict[str, Any]:
    """What is said of the prompt, by the first piece of all."""
    return {"num_input_tokens": first.num_input_tokens, "num_cached_tokens": first.num_cached_tokens}
