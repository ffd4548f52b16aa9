"""A published chat model from its GGUF file (`--published FILE`), asked what people ask: its tokens in
float32 compared with transformers' on the device, then bfloat16, greedy, each answer to its own end: through
Gapless's loop in process, transformers' continuous batching and real Triton. Called by `gpu`.

transformers is told how long each answer was here, so that both compute the same number of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig

from benchmarks.common.clients import Clients
from benchmarks.common.http_streams import Event, HttpStreams
from benchmarks.common.work import Job, Timing, Work
from benchmarks.gpu.continuous_batching import ContinuousBatching, page_of
from benchmarks.gpu.model import STEPS_AHEAD, Measured
from benchmarks.gpu.online import PAGE_TOKENS, RATE, Served
from benchmarks.gpu.report import Figure, LeftOutError
from benchmarks.real_prompts.prompts import Prompt, read_prompts
from python_backends.engine.protocol import Engine
from python_backends.instance.build import build
from python_backends.instance.loop import Instance
from python_backends.nouns.request import RefusedError, Request
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import EngineSettings, LimitSettings, ModelSettings, Settings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.door.door import open_door

MAX_MODEL_TOKENS = 2048
TIE = 1e-3  # between the two best logits: either token is right


@dataclass(frozen=True, slots=True)
class Amount:
    slots: int
    token_budget: int
    kv_gib: float
    prompts: int
    paced: int
    compared: int
    max_tokens: int
    rounds: int


FULL = Amount(256, 4096, 16.0, 500, 100, 24, 256, 5)
QUICK = Amount(4, 256, 0.5, 6, 2, 2, 8, 2)


def published(measured: Measured) -> Iterator[Figure]:
    if measured.published is None:
        raise LeftOutError("--published names no GGUF file")
    amount = QUICK if measured.quick else FULL
    bodies = [body_of(prompt, amount) for prompt in read_prompts()[: amount.prompts]]
    requests = through_door(measured.published, bodies)
    model = reference(measured, measured.published)
    yield agreement(measured, amount, model, requests[: amount.compared])
    yield from through_triton(measured, amount, bodies)
    yield from in_turn(measured, amount, model, requests)


def body_of(prompt: Prompt, amount: Amount) -> dict[str, Any]:
    return {"messages": json.dumps(prompt.messages), "max_tokens": amount.max_tokens}


def through_door(path: Path, bodies: Sequence[dict[str, Any]]) -> list[Request]:
    """As the door makes requests of them, greedy; each one's id is its place. Raises RefusedError."""
    door, requests = open_door(read_checkpoint(path), LimitSettings()), []
    for number, body in enumerate(bodies):
        answer = door.answer(body)
        if isinstance(answer, RefusedError):
            raise answer
        requests.append(answer.changed(request_id=number))
    return requests


def reference(measured: Measured, path: Path) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval().to(measured.device)


def agreement(measured: Measured, amount: Amount, model: Any, requests: Sequence[Request]) -> Figure:
    """Each token is the best by transformers' logits after the same tokens, or ties with it."""
    timings, behind = in_process(measured, amount, "float32", requests), []
    for request, timing in zip(requests, timings, strict=True):
        ids = torch.tensor([request.prompt.tolist() + timing.ids], device=measured.device)
        with torch.no_grad():
            logits = model(ids, logits_to_keep=len(timing.ids) + 1).logits[0, :-1]
        chosen = logits.gather(1, ids[0, len(request.prompt) :, None])[:, 0]
        behind.append((logits.max(1).values - chosen).cpu())
    gaps = torch.cat(behind)
    wrong, ties = int((gaps >= TIE).sum()), int(((gaps > 0) & (gaps < TIE)).sum())
    note = f"of {len(gaps)} tokens of {len(requests)} answers, {ties} ties"
    return Figure("published", "float32, tokens unlike transformers'", wrong, "", "<= 0", note)


def in_turn(measured: Measured, amount: Amount, model: Any, requests: Sequence[Request]) -> Iterator[Figure]:
    """All requests at once, ours and transformers' in turn, in each round."""
    theirs, rounds = peer(amount, model.to(torch.bfloat16), requests), []
    _, engine = build(settings_of(measured, amount, "bfloat16"))
    with closing(engine):
        jobs = [Job(each.prompt.tolist(), amount.max_tokens) for each in requests]
        theirs.run(Work(jobs[: amount.slots // 4], len(jobs)))  # its first steps take longer
        for _ in range(amount.rounds):
            ours = run(amount, engine, requests)
            jobs = [Job(job.prompt, len(timing.ids)) for job, timing in zip(jobs, ours, strict=True)]
            rounds.append((ours, theirs.run(Work(jobs, len(jobs)))))
    theirs.stop()
    for name, timings in zip(("in process", "transformers"), zip(*rounds, strict=True), strict=True):
        yield from figures(f"{name}, at once", timings)


def in_process(measured: Measured, amount: Amount, dtype: str, requests: Sequence[Request]) -> list[Timing]:
    _, engine = build(settings_of(measured, amount, dtype))
    with closing(engine):
        return run(amount, engine, requests)


def settings_of(measured: Measured, amount: Amount, dtype: str) -> Settings:
    return Settings(
        model=ModelSettings(
            str(measured.published), dtype, device=measured.device, max_model_tokens=MAX_MODEL_TOKENS
        ),
        engine=EngineSettings(
            slots=amount.slots,
            token_budget=amount.token_budget,
            kv_memory_gib=amount.kv_gib,
            cuda_graphs=measured.cuda_graphs,
        ),
    )


def run(amount: Amount, engine: Engine, requests: Sequence[Request]) -> list[Timing]:
    """All at once, with a scheduler of their own, so that no prefix is found."""
    clients = Clients(requests, [0.0] * len(requests))
    scheduler = SlotScheduler(engine.limits, amount.token_budget)
    instance = Instance(scheduler, engine, clients, lambda _: None, STEPS_AHEAD)
    while not clients.is_done:
        instance.turn()
    return clients.timings


def peer(amount: Amount, model: Any, requests: Sequence[Request]) -> ContinuousBatching:
    """transformers' continuous batching, with the same slots and steps of as many tokens."""
    pages = -(-(max(len(each.prompt) for each in requests) + amount.max_tokens) // PAGE_TOKENS)
    return ContinuousBatching(
        model,
        ContinuousBatchingConfig(
            **page_of(PAGE_TOKENS),
            num_blocks=amount.slots * pages,
            max_batch_tokens=amount.token_budget,
            max_requests_per_batch=amount.slots,
            allow_block_sharing=False,
        ),
    )


def through_triton(measured: Measured, amount: Amount, bodies: list[dict[str, Any]]) -> Iterator[Figure]:
    served = Served(
        {
            "model.directory": measured.published,
            "model.dtype": "bfloat16",
            "model.device": measured.device,
            "model.max_model_tokens": MAX_MODEL_TOKENS,
            "engine.slots": amount.slots,
            "engine.token_budget": amount.token_budget,
            "engine.kv_memory_gib": amount.kv_gib,
            "engine.cuda_graphs": measured.cuda_graphs,
        }
    )
    path = "/v2/models/ensemble/generate_stream"
    asked = [body | {"stream": True, "return_num_output_tokens": True} for body in bodies]
    try:
        with closing(HttpStreams(served.port, path, len(asked), num_tokens, is_last)) as streams:
            due_s = [number / RATE for number in range(amount.paced)]
            yield from figures(f"Triton, {RATE:g} a second", [streams.run(asked[-amount.paced :], due_s)])
            yield from figures("Triton, at once", [streams.run(asked[: -amount.paced])])
    finally:
        served.stop()


def num_tokens(event: Event) -> int:
    return int(event["num_output_tokens"])


def is_last(event: Event) -> bool:
    return "finish_reason" in event


def figures(how: str, rounds: Sequence[Sequence[Timing]]) -> Iterator[Figure]:
    """The medians of all rounds, and their lowest and highest."""
    counts = [len(each.tokens) for each in rounds[0]]
    told = [f"{len(counts)} answers of {np.mean(counts):.0f} tokens"]
    yield _figure(how, "output", "tokens/s", [_tokens_a_second(timings) for timings in rounds], told)
    firsts = [[each.tokens[0] - each.submitted for each in timings] for timings in rounds]
    betweens = [np.concatenate([np.diff(each.tokens) for each in timings]) for timings in rounds]
    for what, rows in (("to the first token", firsts), ("between tokens", betweens)):
        for percent in (50, 99):
            values = [float(np.percentile(row, percent)) * 1e3 for row in rows]
            yield _figure(how, f"{what}, p{percent}", "ms", values, [])


def _figure(how: str, what: str, unit: str, values: list[float], told: list[str]) -> Figure:
    if len(values) > 1:
        told = [*told, f"{len(values)} rounds, {min(values):.4g} to {max(values):.4g}"]
    return Figure("published", f"{how}: {what}", float(np.median(values)), unit, note="; ".join(told))


def _tokens_a_second(timings: Sequence[Timing]) -> float:
    wall_s = max(each.ended for each in timings) - min(each.submitted for each in timings)
    return sum(len(each.tokens) for each in timings) / wall_s
