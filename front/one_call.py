"""Answers that may have one call: what the model goes on to write behind it is not computed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Unpack

from client.parameters import Parameters
from client.wire import Piece, Prompt
from front.answers import Asker
from front.model import Model
from front.parts.answer import Parts, Shape
from front.parts.events import Ended

# the mark that closes a call, and the answer's end: an answer that ends by itself is not cancelled, because a
# cancel that meets the end of its stream makes tritonserver crash (docs/operations.md)
MOST_BEHIND = 8  # tokens


def one_call(client: Asker, model: Model, shape: Shape) -> Asker:
    """Returns what asks for answers of this shape; if they may have one call, they end behind it."""
    return OneCall(client, model, shape) if shape.has_parts and shape.expected.most_calls else client


class OneCall:
    """Asks for answers of one shape."""

    def __init__(self, client: Asker, model: Model, shape: Shape) -> None:
        self._client, self._model, self._shape = client, model, shape

    async def stream(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> AsyncGenerator[Piece, None]:
        """As LastingClient's. An answer whose call is whole was not cut: it has ended by itself."""
        parts = Parts(self._model, self._shape)
        has_call, num_behind = False, 0
        last: Piece | None = None
        async with contextlib.aclosing(self._client.stream(prompt, **parameters)) as pieces:
            async for piece in pieces:
                if has_call:
                    num_behind += len(piece.output_ids)
                else:
                    has_call = any(isinstance(each, Ended) for each in parts.add(piece))
                if has_call and (piece.finish_reason or num_behind > MOST_BEHIND):
                    last = replace(piece, finish_reason="stop")
                    break
                yield piece
        if last is not None:
            yield last
