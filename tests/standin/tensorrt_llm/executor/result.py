"""One result object a request: it waits for responses on the loop that
it was made on, and each of them changes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: Any = None
    additional_context_outputs: Any = None
    additional_generation_outputs: Any = None
    disaggregated_params: Any = None
    request_perf_metrics: Any = None

    def __post_init__(self) -> None:
        self._read = 0

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def text_diff(self) -> str:
        return ""

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._read :]

    @property
    def logprobs_diff(self) -> list[dict[int, Logprob]]:
        return self.logprobs[self._read :]


@dataclass
class Response:
    """What one iteration, or some, made of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: Exception | None = None


class GenerationResult:
    def __init__(self, request_id: int, prompt_token_ids: list[int], abort: Callable[[int], None]) -> None:
        self.request_id = request_id
        self.prompt = None
        self.prompt_token_ids = prompt_token_ids
        self.outputs = [CompletionOutput(0)]
        self.context_logits = None
        self.decoding_iter = 0
        self.cached_tokens = 0
        self.avg_decoded_tokens_per_iter = None
        self.metrics_dict: dict[str, Any] = {}
        self.disaggregated_params = None
        self._abort = abort
        self._aborted = False
        self._done = False
        self._responses: asyncio.Queue[Response] = asyncio.Queue()

    @property
    def finished(self) -> bool:
        return self._done

    def abort(self) -> None:
        self._abort(self.request_id)
        self._aborted = True

    def aborted(self) -> bool:
        return self._aborted

    def result(self, timeout: float | None = None) -> GenerationResult:
        raise RuntimeError("this result is waited for on an event loop")

    async def aresult(self) -> GenerationResult:
        async for _ in self:
            pass
        return self

    def __await__(self) -> Any:
        return self.aresult().__await__()

    def __iter__(self) -> GenerationResult:
        return self

    def __next__(self) -> GenerationResult:
        return self.result()

    def __aiter__(self) -> GenerationResult:
        return self

    async def __anext__(self) -> GenerationResult:
        if self._done:
            raise StopAsyncIteration
        self._take(await self._responses.get())
        return self

    def _take(self, response: Response) -> None:
        if response.error is not None:
            raise response.error
        output = self.outputs[0]
        output._read = len(output.token_ids)
        output.token_ids += response.tokens
        output.logprobs += response.logprobs
        output.finish_reason, output.stop_reason = response.finish_reason, response.stop_reason
        self._done = response.finish_reason is not None


class RequestOutput(GenerationResult):
    pass
