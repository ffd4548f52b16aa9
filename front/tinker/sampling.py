"""A sample: token ids go on from a prompt of token ids, several times at once."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from msgspec import Struct

from client.async_client import AsyncClient
from client.errors import GaplessError
from client.wire import Piece
from front.errors import ProblemError, of_ensemble, refused
from front.tinker.bodies import UNSUPPORTED
from front.tinker.proto import LENGTH, STOP, SampleResponse

MOST_SAMPLES = 128  # of a request
SEEDS = 2**64
Question = tuple[list[int], list[dict[str, Any]]]


class Chunk(Struct):
    type: str = "encoded_text"
    tokens: list[int] = []


class PromptAsk(Struct):
    chunks: list[Chunk]


class ParametersAsk(Struct):
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str | int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class SampleAsk(Struct):
    sampling_session_id: str
    seq_id: int
    prompt: PromptAsk
    sampling_params: ParametersAsk
    num_samples: int = 1
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: int | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0
    record_stability_info: bool | None = None


REFUSED = (
    *("topk_prompt_logprobs", "topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k"),
    "record_stability_info",
)


def question_of(ask: SampleAsk, adapter: str) -> Question:
    """The prompt, and the parameters of each sample. Raises ProblemError."""
    for name in REFUSED:
        if getattr(ask, name):
            raise refused(name, ": this server doesn't have it; leave it out", UNSUPPORTED)
    if not 1 <= ask.num_samples <= MOST_SAMPLES:
        raise refused("num_samples", f" = {ask.num_samples}: must be between 1 and {MOST_SAMPLES}")
    if any(chunk.type != "encoded_text" for chunk in ask.prompt.chunks):
        raise refused("prompt.chunks", ": must be encoded_text alone", UNSUPPORTED)
    prompt = [token for chunk in ask.prompt.chunks for token in chunk.tokens]
    if not prompt:
        raise refused("prompt", ": must have at least one token")
    last = ask.prompt_logprobs_last_n
    if last is not None and not 1 <= last < len(prompt):
        said = f" = {last}: must be between 1 and {len(prompt) - 1}, less than the prompt has"
        raise refused("prompt_logprobs_last_n", said)
    return prompt, [_parameters(ask, adapter, index) for index in range(ask.num_samples)]


def _parameters(ask: SampleAsk, adapter: str, index: int) -> dict[str, Any]:
    given = ask.sampling_params
    if given.seed is not None and not 0 <= given.seed < SEEDS:
        raise refused("sampling_params.seed", f" = {given.seed}: must be a whole number of 64 bits")
    found = {
        "max_tokens": -1 if given.max_tokens is None else given.max_tokens,
        "temperature": given.temperature,
        "top_k": max(0, given.top_k),
        "top_p": given.top_p,
        "return_log_probs": True,
        **_stops(given),
    }
    if given.seed is not None:
        found["seed"] = (given.seed + index) % SEEDS
    if adapter:
        found["lora_name"] = adapter
    if ask.prompt_logprobs and index == 0:
        found["return_prompt_log_probs"] = True
    return found


def _stops(given: ParametersAsk) -> dict[str, Any]:
    stop = [given.stop] if isinstance(given.stop, str) else given.stop
    if stop is None:
        return {}
    if not stop:  # not even the model's own end
        if given.max_tokens is None:
            raise refused("sampling_params.stop", " = []: needs max_tokens")
        return {"min_tokens": given.max_tokens}
    if len({type(each) for each in stop}) > 1:
        raise refused("sampling_params.stop", ": must be texts, or token ids, not both")
    return {"stop_words" if isinstance(stop[0], str) else "stop_token_ids": stop}


async def sampled(
    client: AsyncClient, gate: asyncio.Semaphore, ask: SampleAsk, question: Question
) -> bytes | ProblemError:
    """A SampleResponse, or why there is none: at the first sample that fails the others are cancelled. `gate`
    lets so many samples into the ensemble at a time.
    """
    prompt, choices = question

    async def one(parameters: dict[str, Any]) -> Piece:
        async with gate:
            return await client.generate(prompt, **parameters)

    samples = [asyncio.create_task(one(parameters)) for parameters in choices]
    try:
        pieces = await asyncio.gather(*samples)
    except GaplessError as error:
        return of_ensemble(error)
    finally:
        for each in samples:
            each.cancel()
        await asyncio.gather(*samples, return_exceptions=True)
    made = SampleResponse(
        sequences=[_sequence(piece) for piece in pieces],
        prompt_cache_hit_tokens=pieces[0].num_cached_tokens or 0,
    )
    if ask.prompt_logprobs:
        made.prompt_logprobs = _prompt_log_probs(pieces[0], len(prompt), ask.prompt_logprobs_last_n)
    data: bytes = made.SerializeToString()
    return data


def _sequence(piece: Piece) -> dict[str, Any]:
    return {
        "stop_reason": STOP if piece.finish_reason == "stop" else LENGTH,
        "tokens": np.array(piece.output_ids, np.int32).tobytes(),
        "logprobs": np.array(piece.output_log_probs, np.float32).tobytes(),
    }


def _prompt_log_probs(piece: Piece, count: int, last: int | None) -> bytes:
    """[count] NaN where there is none: of the first token, and of those that were not asked for."""
    found = np.full(count, np.nan, np.float32)
    found[1:] = piece.prompt_log_probs
    if last is not None:
        found[:-last] = np.nan
    return found.tobytes()
