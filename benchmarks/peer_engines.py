"""The engines that `peers.py` compares: each does the same work its own way and notes when every token came.

A new one is one class with `run` in `ENGINES`; it is made in a process of its own, from (model directory, dtype, requests in flight).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

MAX_MODEL_TOKENS = 512
TOKEN_BUDGET = 256
BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Job:
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Work:
    jobs: list[Job]
    in_flight: int


@dataclass(slots=True)
class Timing:
    """Of one request, in seconds of one clock: submitted, when each token came, answer complete."""

    submitted: float
    tokens: list[float]
    ended: float = 0.0


class PeerEngine(Protocol):
    def run(self, work: Work) -> list[Timing]: ...


class Gapless:
    """One of this project's engines behind its slot scheduler, in one process, without the inference server."""

    def __init__(self, directory: Path, dtype: str, in_flight: int, device: str = "cpu", kind: str = "torch") -> None:
        from python_backends.config import EngineSettings, ModelSettings, Settings
        from python_backends.instance import ENGINES as OURS

        model = ModelSettings(directory=str(directory), dtype=dtype, device=device, max_model_tokens=MAX_MODEL_TOKENS)
        engine = EngineSettings(kind=kind, slots=in_flight, block_tokens=BLOCK_TOKENS)
        self._engine = OURS[kind](Settings(model=model, engine=engine))

    def run(self, work: Work) -> list[Timing]:
        from python_backends.scheduling.scheduler import SlotScheduler

        scheduler = SlotScheduler(self._engine.limits, TOKEN_BUDGET)  # a new one: no prefix is left from an earlier round
        timings: list[Timing] = []
        running = 0
        while running or len(timings) < len(work.jobs):
            for _ in range(min(work.in_flight - running, len(work.jobs) - len(timings))):
                self._submit(scheduler, len(timings), work.jobs[len(timings)])
                timings.append(Timing(time.perf_counter(), []))
                running += 1
            running -= self._step(scheduler, timings)
        return timings

    def _submit(self, scheduler: Any, index: int, job: Job) -> None:
        from python_backends.request import Request, Sampling

        request = Request(index, np.array(job.prompt, np.int32), Sampling(max_tokens=job.max_tokens))
        scheduler.submit(request, np.zeros(0, np.int32))

    def _step(self, scheduler: Any, timings: list[Timing]) -> int:
        """One turn of the loop. How many requests ended."""
        plan = scheduler.plan()
        self._engine.launch(plan)
        events = scheduler.apply(plan, self._engine.collect())
        now, ended = time.perf_counter(), 0
        for index, finish in zip(events.request_ids.tolist(), events.finishes.tolist(), strict=True):
            timings[index].tokens.append(now)
            if finish:
                timings[index].ended = now
                ended += 1
        return ended


class Transformers:
    """transformers' generate over static batches in order of arrival, left padded; each generates to its longest."""

    def __init__(self, directory: Path, dtype: str, _in_flight: int, device: str = "cpu") -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(num_cores())
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval().to(device)

    def run(self, work: Work) -> list[Timing]:
        starts = range(0, len(work.jobs), work.in_flight)
        return [timing for start in starts for timing in self._batch(work.jobs[start : start + work.in_flight])]

    def _batch(self, jobs: list[Job]) -> list[Timing]:
        import torch

        longest = max(len(job.prompt) for job in jobs)
        ids = torch.zeros((len(jobs), longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, job in enumerate(jobs):
            ids[row, longest - len(job.prompt) :] = torch.tensor(job.prompt)
            mask[row, longest - len(job.prompt) :] = 1
        steps, start = _StepTimes(), time.perf_counter()
        count = max(job.max_tokens for job in jobs)
        ids, mask = ids.to(self._model.device), mask.to(self._model.device)
        self._model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=count, eos_token_id=None, streamer=steps)
        ended = time.perf_counter()
        return [Timing(start, steps.times[1 : 1 + job.max_tokens], ended) for job in jobs]


class _StepTimes:
    """generate's streamer: notes when each step's tokens come; the prompt comes first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _tokens: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


ENGINES: dict[str, Callable[..., PeerEngine]] = {
    "gapless": partial(Gapless, kind="openvino"),
    "gapless_torch": Gapless,
    "transformers": Transformers,
}


def num_cores() -> int:
    return len(os.sched_getaffinity(0))
