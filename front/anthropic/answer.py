"""One message: what the ensemble is asked, and what comes, whole or as events."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, cast

from starlette.responses import Response

from client.async_client import AsyncClient
from client.parameters import Parameters
from client.wire import Piece
from front.answers import Answers
from front.anthropic import errors
from front.anthropic.asks import MessagesAsk
from front.anthropic.blocks import Blocks, named_event
from front.anthropic.prompt import prompt_of
from front.bounded_thoughts import bounded
from front.expecting import Wish, shape_of
from front.fields import read_body
from front.guided.choice import of_anthropic
from front.guided.guide import names_of
from front.guided.wanted import wanted
from front.model import Model
from front.names import by_names
from front.one_call import one_call
from front.parameters import parameters_of
from front.parts.answer import Parts
from front.responses import Events, Manner, Whole, event
from front.stopped_by import StoppedBy
from front.tools import strict_of
from front.until_full import MOST_TOKENS, until_full

PING = event({"type": "ping"}, "ping")
MANNER = Manner(lambda: PING, errors.failed, errors.failure, b"")


def answer_message(body: bytes, model: Model, client: AsyncClient) -> Response:
    """Raises ProblemError."""
    ask = read_body(body, MessagesAsk)
    return Message(ask, model, client).response()


class Message:
    """One request for a message, and its answer."""

    def __init__(self, ask: MessagesAsk, model: Model, client: AsyncClient) -> None:
        """Raises ProblemError."""
        messages, tools, extras = prompt_of(ask, model)
        calls_one = bool((ask.tool_choice or {}).get("disable_parallel_tool_use"))
        wish = Wish(
            tools,
            of_anthropic(ask.tool_choice),
            calls_one=calls_one,
            strict=strict_of(ask.tools or ()),
            text=wanted((ask.output_config or {}).get("format"), "output_config.format", is_strict=True),
        )
        shape, guide = shape_of(model, messages, extras, wish)
        is_empty = ask.max_tokens == 0  # the prompt is kept in the cache; the ensemble writes one token
        (parameters,) = parameters_of(ask.plain, 1 if is_empty else min(ask.max_tokens, MOST_TOKENS), model)
        parameters.update(cast(Parameters, extras))
        if ask.stop_sequences or shape.has_parts:
            parameters["return_output_ids"] = True  # which word ended it, where its parts begin
        if guide is not None:
            parameters.update(guide.parameters)
        self._is_streamed = bool(ask.stream)
        thought = ask.thinking or {}
        budget = thought.get("budget_tokens") if thought.get("type") == "enabled" else None
        asks = bounded(client, model, shape, budget, "thinking.budget_tokens")
        asks = one_call(asks, model, shape)
        came = until_full(asks, (messages, parameters), self._is_streamed)
        came = by_names(came, names_of(guide))
        self._came = _emptied(came) if is_empty else came
        self._stopped = StoppedBy(ask.stop_sequences or (), model, shape.continues)
        self._parts = Parts(model, shape)
        self._blocks = Blocks((ask.thinking or {}).get("display") == "omitted")
        self._num_output_tokens = 0
        self._head = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": ask.model or model.name,
        }

    def response(self) -> Response:
        return Events(self._events(), MANNER) if self._is_streamed else Whole(self._whole(), MANNER)

    async def _whole(self) -> dict[str, Any]:
        """Raises ProblemError."""
        async for _, piece in self._came:
            self._add(piece)
            self._blocks.add(self._parts.add(piece))
            self._blocks.finish()
            made = {**self._head, "content": self._blocks.content, **self._end(piece)}
        return {**made, "usage": self._usage(piece)}

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """Raises ProblemError."""
        has_begun = False
        async for _, piece in self._came:
            if not has_begun:
                has_begun = True
                yield self._begin(piece)
            self._add(piece)
            for each in self._blocks.add(self._parts.add(piece)):
                yield each
            if piece.finish_reason:
                for each in self._blocks.finish():
                    yield each
                yield named_event("message_delta", delta=self._end(piece), usage=self._usage(piece))
                yield named_event("message_stop")

    def _begin(self, piece: Piece) -> bytes:
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        return named_event("message_start", message={**self._head, **empty, "usage": self._usage(piece)})

    def _add(self, piece: Piece) -> None:
        self._stopped.add(piece)
        self._num_output_tokens += piece.num_output_tokens or 0

    def _end(self, piece: Piece) -> dict[str, Any]:
        word = self._stopped.word if piece.finish_reason == "stop" else None
        reason = "end_turn" if piece.finish_reason == "stop" else "max_tokens"
        if word is not None:
            reason = "stop_sequence"
        elif reason == "end_turn" and self._blocks.has_calls:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": word}

    def _usage(self, piece: Piece) -> dict[str, Any]:
        """Tokens of the prompt that came from the cache are counted apart from the others."""
        cached = piece.num_cached_tokens or 0
        return {
            "input_tokens": (piece.num_input_tokens or 0) - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": self._num_output_tokens,
        }


async def _emptied(came: Answers) -> Answers:
    """The same without what was written, as if it had been cut before. Raises ProblemError."""
    async with contextlib.aclosing(came) as pieces:
        async for number, piece in pieces:
            reason = "length" if piece.finish_reason else ""
            yield number, replace(piece, text="", finish_reason=reason, num_output_tokens=0, output_ids=())
