"""/v1/completions: texts or token ids, which answers go on from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from client.async_client import AsyncClient
from client.wire import Piece
from front.answering import Answering, finish_reason
from front.asks import CompletionAsk
from front.errors import refused
from front.fields import read_ask
from front.model import Model
from front.parameters import parameters_of
from front.prompts import prompts_of
from front.tokens import TokenTexts

DEFAULT_MAX_TOKENS = 16  # OpenAI's


def answer_completion(body: bytes, model: Model, client: AsyncClient) -> Response:
    """Raises ProblemError."""
    return Completion(read_ask(body, CompletionAsk), model, client).response()


class Completion(Answering):
    """One request for answers to one or several prompts: those to the first have the first numbers."""

    prefix, kind, kind_of_chunks = "cmpl", "text_completion", "text_completion"

    def __init__(self, ask: CompletionAsk, model: Model, client: AsyncClient) -> None:
        """Raises ProblemError."""
        prompts = prompts_of(ask)
        choices = parameters_of(ask, DEFAULT_MAX_TOKENS if ask.max_tokens is None else ask.max_tokens, model)
        if ask.echo and ask.logprobs is not None:
            raise refused("echo", " = true: prompts have no log-probabilities here; leave logprobs out")
        for parameters in choices:
            if ask.echo:
                parameters["exclude_input_in_output"] = False
            if ask.logprobs is not None:
                parameters |= {"return_log_probs": True, "num_top_log_probs": ask.logprobs}
        questions = [(prompt, each) for prompt in prompts for each in choices]
        super().__init__(ask, questions, model, client)
        self._scores = ask.logprobs is not None
        self._texts = [TokenTexts(model, ask.stop_token_ids or (), True) for _ in questions]
        self._offsets = [0] * len(questions)  # of the next token's text

    def choice(self, number: int, piece: Piece) -> dict[str, Any]:
        return {
            "index": number,
            "text": piece.text,
            "logprobs": self._log_probs(number, piece),
            "finish_reason": finish_reason(piece),
        }

    def chunks(self, number: int, piece: Piece) -> Iterator[dict[str, Any]]:
        yield self.choice(number, piece)

    def _log_probs(self, number: int, piece: Piece) -> dict[str, Any] | None:
        """Lists with an element for each token. The most probable tokens include the token itself."""
        if not self._scores:
            return None
        entries = self._texts[number].entries(piece)
        offsets = []
        for entry in entries:
            offsets.append(self._offsets[number])
            self._offsets[number] += len(entry["token"])
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [
                {each["token"]: each["logprob"] for each in (entry, *reversed(entry["top_logprobs"]))}
                for entry in entries
            ],
            "text_offset": offsets,
        }
