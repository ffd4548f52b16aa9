"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from client.async_client import AsyncClient
from client.wire import Piece
from front.answering import Answering, finish_reason
from front.asks import ChatAsk
from front.errors import refused
from front.fields import read_ask
from front.messages import plain_messages
from front.model import Model
from front.parameters import parameters_of
from front.tokens import TokenTexts


def answer_chat(body: bytes, model: Model, client: AsyncClient) -> Response:
    """Raises ProblemError."""
    return Chat(read_ask(body, ChatAsk), model, client).response()


class Chat(Answering):
    """One request for answers to a chat."""

    prefix, kind, kind_of_chunks = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, ask: ChatAsk, model: Model, client: AsyncClient) -> None:
        """Raises ProblemError."""
        longest = ask.max_tokens if ask.max_completion_tokens is None else ask.max_completion_tokens
        messages = plain_messages(ask.messages, model)
        choices = parameters_of(ask, longest, model)
        if ask.top_logprobs and not ask.logprobs:
            raise refused("top_logprobs", f" = {ask.top_logprobs}: needs logprobs = true")
        for parameters in choices:
            if ask.logprobs:
                parameters |= {"return_log_probs": True, "num_top_log_probs": ask.top_logprobs or 0}
        super().__init__(ask, [(messages, each) for each in choices], model, client)
        self._scores = bool(ask.logprobs)
        self._texts = [TokenTexts(model, ask.stop_token_ids or (), False) for _ in choices]
        self._begun: set[int] = set()  # numbers of the answers whose first chunk was sent

    def choice(self, number: int, piece: Piece) -> dict[str, Any]:
        return {
            "index": number,
            "message": {"role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": self._log_probs(number, piece),
            "finish_reason": finish_reason(piece),
        }

    def chunks(self, number: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """The role first, the reason of the end last, each in a chunk of its own."""
        if number not in self._begun:
            self._begun.add(number)
            yield _delta(number, {"role": "assistant", "content": ""})
        scores = self._log_probs(number, piece)
        if piece.text or (scores and scores["content"]):
            yield _delta(number, {"content": piece.text}, scores)
        if piece.finish_reason:
            yield _delta(number, {}, reason=finish_reason(piece))

    def _log_probs(self, number: int, piece: Piece) -> dict[str, Any] | None:
        if not self._scores:
            return None
        return {"content": self._texts[number].entries(piece), "refusal": None}


def _delta(number: int, delta: Any, scores: Any = None, reason: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": scores, "finish_reason": reason}
