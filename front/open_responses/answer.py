"""One request for a response: what the ensemble is asked, and what comes, whole or as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

from starlette.responses import Response

from client.async_client import AsyncClient
from client.parameters import Parameters
from client.wire import Piece
from front.errors import ProblemError, refused
from front.expecting import Wish, shape_of
from front.fields import read_body
from front.guided.choice import NONE
from front.guided.guide import names_of
from front.guided.inputs import inputs_of
from front.guided.wanted import wanted
from front.model import Model
from front.names import by_names
from front.one_call import one_call
from front.open_responses.asks import ResponsesAsk, check
from front.open_responses.items import TOO_LONG, Growing
from front.open_responses.kinds import Scores
from front.open_responses.turns import turns_of
from front.parameters import parameters_of
from front.parts.answer import Parts
from front.responses import Events, Manner, Whole
from front.tokens import TokenTexts
from front.tools import extras_of, of_openai, strict_of, thinking
from front.until_full import MOST_TOKENS, until_full
from python_backends.text.door.fitting import fitted


def answer_response(body: bytes, model: Model, client: AsyncClient) -> Response:
    """Raises ProblemError."""
    ask = read_body(body, ResponsesAsk)
    check(ask)
    return Answer(ask, model, client).response()


class Answer:
    """One request, and its answer."""

    def __init__(self, ask: ResponsesAsk, model: Model, client: AsyncClient) -> None:
        """Raises ProblemError."""
        tools = list(of_openai(ask.given_tools))
        messages = fitted(turns_of(ask), model.template, bool(tools))
        longest = ask.max_output_tokens
        if longest is not None and longest < 1:
            raise refused("max_output_tokens", f" = {longest}: must be at least 1")
        given = thinking((ask.reasoning or {}).get("effort"), "reasoning.effort")
        extras = extras_of(model, tools, given)
        wish = Wish(
            tools,
            ask.choice,
            calls_one=ask.parallel_tool_calls is False,
            strict=strict_of(ask.given_tools),
            inputs=inputs_of(ask.given_tools) if ask.choice.mode != NONE else {},
            text=wanted((ask.text or {}).get("format"), "text.format"),
        )
        shape, guide = shape_of(model, messages, extras, wish)
        (parameters,) = parameters_of(ask.plain, longest and min(longest, MOST_TOKENS), model)
        parameters.update(cast(Parameters, extras))
        if ask.wants_log_probs:
            parameters |= {"return_log_probs": True, "num_top_log_probs": ask.top_logprobs or 0}
        if shape.has_parts:
            parameters["return_output_ids"] = True
        if guide is not None:
            parameters.update(guide.parameters)
        self._parts = Parts(model, shape)
        self._is_streamed = bool(ask.stream)
        asks = one_call(client, model, shape)
        came = until_full(asks, (messages, parameters), self._is_streamed)
        self._came = by_names(came, names_of(guide))
        self._growing = Growing(ask, model.name)
        self._texts = TokenTexts(model, (), False) if ask.wants_log_probs else None
        self._scores: list[dict[str, Any] | None] = []  # of each token so far
        self._num_output_tokens = 0

    def response(self) -> Response:
        if not self._is_streamed:
            return Whole(self._whole())
        growing = self._growing
        return Events(self._events(), Manner(growing.sign, growing.failed, self._failure, b""))

    def _failure(self, problem: ProblemError) -> Response:
        """Of a stream that has not begun. That a prompt does not fit, Codex reads from an event alone."""
        if problem.code != TOO_LONG:
            return problem.response()
        events = self._growing.begin() + self._growing.failed(problem)
        return Response(events, media_type="text/event-stream")

    async def _whole(self) -> dict[str, Any]:
        """Raises ProblemError."""
        async for _, piece in self._came:
            self._growing.add(self._parts.add(piece), self._scores_of(piece))
            usage = self._usage(piece)
            self._growing.end(_incomplete(piece), usage)
            made = self._growing.whole(_incomplete(piece), usage)
        return made

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """Raises ProblemError."""
        async for _, piece in self._came:
            begun = b"" if self._growing.has_begun else self._growing.begin()
            grown = self._growing.add(self._parts.add(piece), self._scores_of(piece))
            usage = self._usage(piece)
            ended = self._growing.end(_incomplete(piece), usage) if piece.finish_reason else b""
            if made := begun + grown + ended:
                yield made

    def _scores_of(self, piece: Piece) -> list[Scores]:
        """Of each text that `piece` has brought."""
        if self._texts is not None:
            self._scores += self._texts.of_all(piece)
        found = self._parts.text_tokens
        return [[each for each in self._scores[tokens.start : tokens.stop] if each] for tokens in found]

    def _usage(self, piece: Piece) -> dict[str, Any]:
        self._num_output_tokens += piece.num_output_tokens or 0
        num_prompt = piece.num_input_tokens or 0
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {
                "cached_tokens": piece.num_cached_tokens or 0,
                "cache_write_tokens": 0,
            },
            "output_tokens": self._num_output_tokens,
            "output_tokens_details": {"reasoning_tokens": self._parts.num_thought_tokens},
            "total_tokens": num_prompt + self._num_output_tokens,
        }


def _incomplete(piece: Piece) -> str | None:
    """Why; None: the answer is complete."""
    return None if piece.finish_reason == "stop" else "max_output_tokens"
