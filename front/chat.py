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
from front.bounded_thoughts import bounded
from front.errors import refused
from front.expecting import Wish, shape_of
from front.fields import read_ask
from front.guided.choice import NONE
from front.guided.choice import of_openai as choice_of
from front.guided.guide import names_of
from front.guided.inputs import inputs_of
from front.guided.wanted import wanted
from front.messages import plain_messages
from front.model import Model
from front.names import by_names, naming
from front.one_call import one_call
from front.parameters import parameters_of
from front.parts.answer import Parts
from front.parts.chat import ChatParts
from front.tokens import TokenTexts
from front.tools import Tool, custom_of, extras_of, of_openai, strict_of, thinking


def answer_chat(body: bytes, model: Model, client: AsyncClient) -> Response:
    """Raises ProblemError."""
    return Chat(read_ask(body, ChatAsk), model, client).response()


class Chat(Answering):
    """One request for answers to a chat."""

    prefix, kind, kind_of_chunks = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, ask: ChatAsk, model: Model, client: AsyncClient) -> None:
        """Raises ProblemError."""
        longest, names = ask.max_tokens, {}
        if ask.max_completion_tokens is not None:
            longest, names = ask.max_completion_tokens, {"max_tokens": "max_completion_tokens"}
        choice = choice_of(ask.tool_choice)
        tools = list(of_openai(ask.tools or ())) if choice.mode != NONE else []
        messages = plain_messages(ask.messages, model, bool(tools))
        extras = _extras(ask, model, tools)
        wish = Wish(
            tools,
            choice,
            calls_one=ask.parallel_tool_calls is False,
            strict=strict_of(ask.tools or ()),
            inputs=inputs_of(ask.tools or ()) if tools else {},
            text=wanted(ask.response_format, "response_format"),
        )
        shape, guide = shape_of(model, messages, extras, wish)
        with naming(names):
            choices = parameters_of(ask, longest, model)
        if ask.top_logprobs and not ask.logprobs:
            raise refused("top_logprobs", f" = {ask.top_logprobs}: needs logprobs = true")
        for parameters in choices:
            parameters.update(extras)
            if shape.has_parts:
                parameters["return_output_ids"] = True
            if guide is not None:
                parameters.update(guide.parameters)
            if ask.logprobs:
                parameters |= {"return_log_probs": True, "num_top_log_probs": ask.top_logprobs or 0}
        asks = bounded(client, model, shape, ask.thinking_token_budget, "thinking_token_budget")
        asks = one_call(asks, model, shape)
        super().__init__(ask, [(messages, each) for each in choices], model, asks)
        self._came = by_names(self._came, {**names, **names_of(guide)})
        self._scores = bool(ask.logprobs)
        self._texts = [TokenTexts(model, ask.stop_token_ids or (), shape.continues) for _ in choices]
        self._parts = [Parts(model, shape) for _ in choices]
        self._made = [ChatParts(custom_of(ask.tools or ())) for _ in choices]
        self._has_begun = False  # the first chunk of each answer was sent

    def choice(self, number: int, piece: Piece) -> dict[str, Any]:
        list(self._deltas(number, piece))
        return {
            "index": number,
            "message": self._made[number].message(),
            "logprobs": self._log_probs(number, piece),
            "finish_reason": self._reason(number, piece),
        }

    def chunks(self, number: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """The role first, the reason of the end last, each in a chunk of its own. The roles of all answers
        come first, by their numbers: OpenAI's client wants no answer before those with smaller ones.
        """
        if not self._has_begun:
            self._has_begun = True
            for each in range(len(self._parts)):
                yield _delta(each, {"role": "assistant", "content": ""})
        scores = self._log_probs(number, piece)
        for delta in self._deltas(number, piece):
            yield _delta(number, delta, scores)
            scores = None
        if scores and scores["content"]:
            yield _delta(number, {"content": ""}, scores)
        if piece.finish_reason:
            yield _delta(number, {}, reason=self._reason(number, piece))

    def _deltas(self, number: int, piece: Piece) -> Iterator[dict[str, Any]]:
        yield from self._made[number].deltas(self._parts[number].add(piece))
        if piece.finish_reason:
            self._usage.num_thought_tokens += self._parts[number].num_thought_tokens

    def _reason(self, number: int, piece: Piece) -> str | None:
        reason = finish_reason(piece)
        return "tool_calls" if reason == "stop" and self._made[number].has_calls else reason

    def _log_probs(self, number: int, piece: Piece) -> dict[str, Any] | None:
        if not self._scores:
            return None
        return {"content": self._texts[number].entries(piece), "refusal": None}


def _extras(ask: ChatAsk, model: Model, tools: list[Tool]) -> Parameters:
    """Raises ProblemError."""
    continues = bool(ask.continue_final_message)
    if continues and ask.messages[-1].role != "assistant":
        raise refused("continue_final_message", " = true: the last message must be an assistant's")
    if ask.add_generation_prompt not in (None, not continues):
        raise refused("add_generation_prompt", ": must be true, or false with continue_final_message")
    given = {**thinking(ask.reasoning_effort, "reasoning_effort"), **(ask.chat_template_kwargs or {})}
    return cast(Parameters, extras_of(model, tools, given, continues))


def _delta(number: int, delta: Any, scores: Any = None, reason: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": scores, "finish_reason": reason}
