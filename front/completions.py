"""/v1/completions: texts or token ids, which answers go on from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from client.async_client import AsyncClient
from client.wire import Piece
from front.answering import Answering, finish_reason
from front.asks import CompletionAsk
from front.fields import read_ask
from front.log_prob_lists import LogProbLists
from front.model import Model
from front.names import by_names
from front.parameters import parameters_of
from front.prompts import prompts_of

DEFAULT_MAX_TOKENS = 16  # OpenAI's
NAMES = {"top_logprobs": "logprobs"}


def answer_completion(body: bytes, model: Model, client: AsyncClient) -> Response:
    """Raises ProblemError."""
    return Completion(read_ask(body, CompletionAsk), model, client).response()


class Completion(Answering):
    """One request for answers to one or several prompts: those to the first have the first numbers."""

    prefix, kind, kind_of_chunks = "cmpl", "text_completion", "text_completion"

    def __init__(self, ask: CompletionAsk, model: Model, client: AsyncClient) -> None:
        """Raises ProblemError."""
        prompts = prompts_of(ask)
        max_tokens = DEFAULT_MAX_TOKENS if ask.max_tokens is None else ask.max_tokens
        echoes, scores = bool(ask.echo), ask.logprobs is not None
        choices = parameters_of(ask, max_tokens, model, least=0 if echoes else 1)
        for parameters in choices:
            if echoes:
                parameters["exclude_input_in_output"] = False
            if ask.logprobs is not None:
                parameters |= {"return_log_probs": True, "num_top_log_probs": ask.logprobs}
            if echoes and scores:
                parameters["return_prompt_log_probs"] = True
        questions = [(prompt, each) for prompt in prompts for each in choices]
        super().__init__(ask, questions, model, client)
        self._came = by_names(self._came, NAMES)
        ends = ask.stop_token_ids or ()
        self._scores = [LogProbLists(model, ends, echoes) for _ in questions] if scores else None

    def choice(self, number: int, piece: Piece) -> dict[str, Any]:
        return {
            "index": number,
            "text": piece.text,
            "logprobs": None if self._scores is None else self._scores[number].of(piece),
            "finish_reason": finish_reason(piece),
        }

    def chunks(self, number: int, piece: Piece) -> Iterator[dict[str, Any]]:
        yield self.choice(number, piece)
