"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from starlette.responses import Response

from client.async_client import AsyncClient
from client.parameters import Parameters
from client.wire import Piece
from front.answering import Answering, finish_reason
from front.asks import ChatAsk
from front.errors import refused
from front.fields import read_ask
from front.messages import plain_messages
from front.model import Model
from front.parameters import parameters_of
from front.tokens import TokenTexts
from front.tools import extras_of, of_openai, thinking


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
        extras = _extras(ask, model)
        choices = parameters_of(ask, longest, model)
        if ask.top_logprobs and not ask.logprobs:
            raise refused("top_logprobs", f" = {ask.top_logprobs}: needs logprobs = true")
        for parameters in choices:
            parameters.update(extras)
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


def _extras(ask: ChatAsk, model: Model) -> Parameters:
    """Raises ProblemError."""
    if ask.tool_choice not in (None, "auto", "none"):
        said = ": an answer can't be made to call a tool here; leave it out, or send auto"
        raise refused("tool_choice", said, "unsupported_value")
    continues = bool(ask.continue_final_message)
    if continues and ask.messages[-1].role != "assistant":
        raise refused("continue_final_message", " = true: the last message must be an assistant's")
    if ask.add_generation_prompt not in (None, not continues):
        raise refused("add_generation_prompt", ": must be true, or false with continue_final_message")
    named = {**thinking(ask.reasoning_effort, "reasoning_effort"), **(ask.chat_template_kwargs or {})}
    tools = of_openai(ask.tools or ()) if ask.tool_choice != "none" else ()
    return cast(Parameters, extras_of(model, tools, named, continues))


def _delta(number: int, delta: Any, scores: Any = None, reason: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": scores, "finish_reason": reason}
