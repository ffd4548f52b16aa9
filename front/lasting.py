"""Answers that outlast the server: when tritonserver, the scheduler model, the tokenizer or the detokenizer
dies, the request is sent again once the server is back, with the tokens that came before. So it is when the
server gives an answer up that is still read, as it may where all processes wait for a processor. Who reads
the pieces sees a pause.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack

from client.async_client import AsyncClient
from client.errors import GaplessError, UnavailableError
from client.parameters import Parameters
from client.retries import Retries
from client.wire import Piece, Prompt, request_message
from front.attempts import LEFT, Attempts, Patience, Turn
from front.record import TRACE, current

T = TypeVar("T")


class LastingClient(AsyncClient):
    """An AsyncClient whose answers go on after the server has died, and in float32 are those without its
    death if they have a seed. Whole answers come in pieces, too, and are joined here: what came stays.
    """

    def __init__(self, url: str, patience: Patience) -> None:
        super().__init__(url, retries=Retries(attempts=1))
        self._patience = patience
        self._new: set[int] = set()  # requests that wait and that no server has had, each by an id
        self._turn = Turn()

    async def generate(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> Piece:
        """Returns the whole answer in one piece. Raises GaplessError."""
        async with contextlib.aclosing(self._lasting(prompt, parameters)) as pieces:
            return joined([piece async for piece in pieces])

    def stream(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> AsyncGenerator[Piece, None]:
        """Yields pieces of the answer when they arrive. Raises GaplessError."""
        return self._lasting(prompt, parameters)

    async def _lasting(self, prompt: Prompt, parameters: Parameters) -> AsyncGenerator[Piece, None]:
        attempts, num_cached = Attempts(self._patience, self._new, self._turn), None
        delivered = list(parameters.get("delivered_ids", ()))
        try:
            while True:
                asked: dict[str, Any] = {**parameters, "return_output_ids": True}
                if delivered:
                    asked["delivered_ids"] = delivered
                try:
                    async with contextlib.aclosing(self._asked(prompt, asked)) as pieces:
                        async for piece in pieces:
                            # not by this process, which would not read on
                            if piece.finish_reason == "cancelled":
                                raise UnavailableError(LEFT)
                            attempts.came(len(piece.output_ids))
                            delivered += piece.output_ids
                            # what the attempts after the first find in the cache is their own
                            if num_cached is None:
                                num_cached = piece.num_cached_tokens
                            is_same = piece.num_cached_tokens == num_cached
                            yield piece if is_same else replace(piece, num_cached_tokens=num_cached)
                    return
                except GaplessError as error:
                    await attempts.wait_after(error)
        finally:
            attempts.end()

    def _asked(self, prompt: Prompt, parameters: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """One attempt, under the name of the HTTP request, and in its caller's trace."""
        request, record = request_message(prompt, True, parameters), current()
        request.id = record.request_id
        return self._pieces(request, metadata=[(TRACE, record.trace)] if record.trace else None)


def joined(pieces: Sequence[Piece]) -> Piece:
    """Returns the whole answer of which these are all pieces."""
    last = pieces[-1]
    counts = [piece.num_output_tokens for piece in pieces if piece.num_output_tokens is not None]
    return replace(
        last,
        text="".join(piece.text for piece in pieces),
        num_output_tokens=sum(counts) if counts else None,
        output_ids=_chained(piece.output_ids for piece in pieces),
        output_log_probs=_chained(piece.output_log_probs for piece in pieces),
        top_ids=_chained(piece.top_ids for piece in pieces),
        top_log_probs=_chained(piece.top_log_probs for piece in pieces),
        prompt_ids=_chained(piece.prompt_ids for piece in pieces),
        prompt_log_probs=_chained(piece.prompt_log_probs for piece in pieces),
        prompt_top_ids=_chained(piece.prompt_top_ids for piece in pieces),
        prompt_top_log_probs=_chained(piece.prompt_top_log_probs for piece in pieces),
    )


def _chained(parts: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(itertools.chain.from_iterable(parts))
