"""The engines of `peers` that run in one process of the project's own environment: each records when every
token arrived.

A new one is a class with `run` in `ENGINES`, or, if it needs more, an `Engine` in its own module in
`workers/`. Each is made in its own process, from (model directory, dtype, requests in flight, tokens
of the longest request) and the options in `setups.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.scored_text import Scores, own_scores
from benchmarks.common.work import (
    BLOCK_TOKENS,
    PEER_TOKEN_BUDGET,
    Job,
    PeerEngine,
    Timing,
    Work,
    kv_blocks,
    num_cores,
)

TOKEN_BUDGET = PEER_TOKEN_BUDGET


class Gapless:
    """This project's own loop over one of its engines, in one process: the
    instance without the wire and the inference server.
    """

    def __init__(
        self,
        directory: Path,
        dtype: str,
        in_flight: int,
        max_model_tokens: int,
        device: str = "cpu",
        weights: str = "same",
        **engine: Any,
    ) -> None:
        from python_backends.instance.build import build, start_guides
        from python_backends.settings import EngineSettings, ModelSettings, Settings

        model = ModelSettings(
            directory=str(directory),
            dtype=dtype,
            weights=weights,
            device=device,
            max_model_tokens=max_model_tokens,
        )
        chosen = EngineSettings(
            kind="torch",
            slots=in_flight,
            block_tokens=BLOCK_TOKENS,
            kv_blocks=kv_blocks(directory, dtype),
            token_budget=TOKEN_BUDGET,
        )
        self._settings = Settings(model=model, engine=replace(chosen, **engine))
        scheduler, self._engine = build(self._settings)
        self._guided = start_guides(self._settings, scheduler, self._engine, lambda: None)

    def run(self, work: Work) -> list[Timing]:
        from benchmarks.common.clients import ClosedLoop
        from python_backends.guides.grammars import grammar_of
        from python_backends.instance.loop import Instance, Parts
        from python_backends.nouns.request import Request, Sampling
        from python_backends.scheduling.slot_scheduler import SlotScheduler
        from python_backends.text.checkpoint import read_checkpoint

        follows = any(job.schema for job in work.jobs)
        ends = read_checkpoint(self._settings.model_directory).eos_ids if follows else ()

        def request_of(request_id: int, job: Job) -> Request:
            grammar = grammar_of("json_schema", job.schema) if job.schema else ""
            sampling = Sampling(max_tokens=job.max_tokens, grammar=grammar, stop_ids=ends)
            return Request(request_id, np.array(job.prompt, np.int32), sampling)

        # a new one, without prefixes of an earlier round
        scheduler = SlotScheduler(self._engine.limits, TOKEN_BUDGET)
        clients = ClosedLoop(work, request_of)
        ahead, parts = self._settings.steps_ahead, Parts(guided=self._guided)
        instance = Instance(scheduler, self._engine, clients, lambda _: None, ahead, parts)
        while not clients.is_done:
            instance.turn()
        return clients.timings

    def score(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        return own_scores(self._engine, TOKEN_BUDGET, texts)


class Transformers:
    """transformers' generate over static batches in order of arrival,
    left padded; each generates to its longest.
    """

    def __init__(
        self, directory: Path, dtype: str, _in_flight: int, _max_model_tokens: int, device: str = "cpu"
    ) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(num_cores())
        self._model = (
            AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval().to(device)
        )

    def run(self, work: Work) -> list[Timing]:
        starts = range(0, len(work.jobs), work.in_flight)
        return [
            timing for start in starts for timing in self._batch(work.jobs[start : start + work.in_flight])
        ]

    def score(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        import torch

        found = []
        for text in texts:
            with torch.inference_mode():
                logits = self._model(torch.tensor([text], device=self._model.device)).logits[0, :-1].float()
            chosen = logits.log_softmax(-1).gather(1, torch.tensor(text[1:], device=logits.device)[:, None])
            found.append(Scores(chosen[:, 0].tolist(), logits.argmax(-1).tolist()))
        return found

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
        self._model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=count, eos_token_id=None, streamer=steps
        )
        ended = time.perf_counter()
        return [
            Timing(start, steps.times[1 : 1 + job.max_tokens], ended, steps.ids(row, job.max_tokens))
            for row, job in enumerate(jobs)
        ]


class _StepTimes:
    """generate's streamer: records when each step's tokens arrive; the prompt comes first."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._tokens: list[Any] = []  # of each step: [rows]

    def put(self, tokens: Any) -> None:
        self.times.append(time.perf_counter())
        self._tokens.append(tokens)

    def ids(self, row: int, count: int) -> list[int]:
        """Returns the first `count` tokens of a row's answer."""
        return [int(tokens[row]) for tokens in self._tokens[1 : 1 + count]]

    def end(self) -> None:
        pass


ENGINES: dict[str, Callable[..., PeerEngine]] = {"gapless": Gapless, "transformers": Transformers}
