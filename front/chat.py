"""/v1/chat/completions: a chat, answered whole or in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response

from client.async_client import AsyncClient
from client.wire import Piece
from front.answers import answers
from front.asks import ChatAsk
from front.errors import refused
from front.fields import read_ask
from front.messages import plain_messages
from front.model import Model
from front.parameters import parameters_of
from front.responses import Events, Whole, event
from front.tokens import TokenTexts
from front.usage import Usage


def answer_chat(body: bytes, model: Model, client: AsyncClient) -> Response:
    """Raises ProblemError."""
    chat = Chat(read_ask(body, ChatAsk), model, client)
    return Events(chat.events()) if chat.is_streamed else Whole(chat.whole())


def finish_reason(piece: Piece) -> str:
    return "stop" if piece.finish_reason == "stop" else "length"


class Chat:
    """One request."""

    def __init__(self, ask: ChatAsk, model: Model, client: AsyncClient) -> None:
        """Raises ProblemError."""
        longest = ask.max_tokens if ask.max_completion_tokens is None else ask.max_completion_tokens
        messages = plain_messages(ask.messages)
        choices = parameters_of(ask, longest, model)
        if ask.top_logprobs and not ask.logprobs:
            raise refused("top_logprobs", f" = {ask.top_logprobs}: needs logprobs = true")
        for parameters in choices:
            if ask.logprobs:
                parameters |= {"return_log_probs": True, "num_top_log_probs": ask.top_logprobs or 0}
        self.is_streamed = bool(ask.stream)
        self._ask = ask
        self._came = answers(client, [(messages, each) for each in choices], self.is_streamed)
        self._usage = Usage(len(choices))
        self._texts = [TokenTexts(model, ask.stop_token_ids or (), False) for _ in choices]
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(16)}",
            "object": "chat.completion.chunk" if self.is_streamed else "chat.completion",
            "created": int(time.time()),
            "model": ask.model or model.name,
        }

    async def whole(self) -> dict[str, Any]:
        """Raises ProblemError."""
        choices: dict[int, dict[str, Any]] = {}
        async for number, piece in self._came:
            self._usage.add(number, piece)
            choices[number] = {
                "index": number,
                "message": {"role": "assistant", "content": piece.text, "refusal": None},
                "logprobs": self._log_probs(number, piece),
                "finish_reason": finish_reason(piece),
            }
        ordered = [choices[number] for number in sorted(choices)]
        return {**self._head, "choices": ordered, "usage": self._usage.plain()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Raises ProblemError."""
        begun = set()
        async for number, piece in self._came:
            self._usage.add(number, piece)
            if number not in begun:
                begun.add(number)
                yield self._chunk(number, {"role": "assistant", "content": ""})
            scores = self._log_probs(number, piece)
            if piece.text or (scores and scores["content"]):
                yield self._chunk(number, {"content": piece.text}, scores)
            if piece.finish_reason:
                yield self._chunk(number, {}, reason=finish_reason(piece))
        if self._ask.includes_usage:
            yield event({**self._head, "choices": [], "usage": self._usage.plain()})

    def _chunk(self, number: int, delta: Any, scores: Any = None, reason: str | None = None) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": scores, "finish_reason": reason}
        usage = {"usage": None} if self._ask.includes_usage else {}
        return event({**self._head, "choices": [choice], **usage})

    def _log_probs(self, number: int, piece: Piece) -> dict[str, Any] | None:
        if not self._ask.logprobs:
            return None
        return {"content": self._texts[number].entries(piece), "refusal": None}
