"""The runs of benchmarks/magnus on its simulated engine: a step costs the same
whatever the rows, lengths are known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.magnus.requests import Ask
from benchmarks.magnus.runs import (
    Run,
    Work,
    continuous_scheduler,
    poisson_arrivals,
    run_continuous,
    run_static,
)
from benchmarks.magnus.simulated import SimulatedEngine, lengths_by_prompt
from benchmarks.magnus.static_batching.batches import BatchLimits
from benchmarks.magnus.static_batching.plans import NO_TOKENS
from python_backends.nouns.request import ModelLimits
from python_backends.nouns.step import Admit

COUNT, MAX_TOKENS, SIZE = 400, 256, 7
LIMITS = ModelLimits(
    max_model_tokens=512, vocab_size=1000, num_slots=96, num_blocks=16 * SIZE, block_tokens=32
)
STEP_MS = (20.0, 0.05, 0.2)


@dataclass
class Known:
    """In place of both predictors: the true lengths, and a time by steps and rows."""

    lengths: NDArray[np.int64]

    def expected_tokens(self, requests: range) -> list[int]:
        return self.lengths[list(requests)].tolist()

    def __call__(self, shapes: NDArray[np.int64]) -> NDArray[np.float64]:
        return shapes[:, 2] * (STEP_MS[0] + STEP_MS[1] * shapes[:, 0]) / 1e3

    def ended(self, _request: int, _length: int) -> None: ...

    def finished(self, _served: object) -> None: ...

    def relearn_if_due(self, _now_s: float) -> None: ...


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """Every policy at four times what VS can answer."""
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(3.5, 0.8, COUNT), 4, 250).astype(np.int64)
    prompts = [
        np.append(rng.integers(0, 999, length), number).astype(np.int32)
        for number, length in enumerate(lengths)
    ]
    asked = [Ask("copy", "Copy:", "", prompt, len(prompt)) for prompt in prompts]
    limits, known = BatchLimits(LIMITS.num_blocks, 32, 96, SIZE, max_waste=6000), Known(lengths)
    made = {}
    for policy in ("vs", "glp", "abp", "magnus", "ccb"):
        engine = SimulatedEngine(LIMITS, lengths_by_prompt(asked, lengths), STEP_MS)
        work = Work(asked, poisson_arrivals(COUNT, 12.0, seed=1), 12.0, MAX_TOKENS, engine.now)
        if policy == "ccb":
            made[policy] = run_continuous(policy, work, engine, SIZE)
        else:
            made[policy] = run_static(
                policy, policy, work, engine, limits, None if policy == "vs" else (known, known)
            )  # type: ignore[arg-type]
    assert all(run.num_valid_tokens == lengths.sum() for run in made.values())
    return made


def test_every_request_is_answered_once_whatever_the_policy(runs: dict[str, Run]) -> None:
    assert {policy: len(run.responses_s) for policy, run in runs.items()} == dict.fromkeys(runs, COUNT)
    assert not any(run.num_failed for run in runs.values())


def test_each_part_of_magnus_is_a_gain_on_a_device_that_reads_its_weights_at_every_step(
    runs: dict[str, Run],
) -> None:
    vs, glp, abp, magnus = (runs[policy].row for policy in ("vs", "glp", "abp", "magnus"))
    assert vs.request_throughput < glp.request_throughput < abp.request_throughput
    assert vs.mean_response_s > glp.mean_response_s > abp.mean_response_s > magnus.mean_response_s


def test_with_perfect_knowledge_magnus_gains_what_its_paper_says_over_vanilla_scheduling(
    runs: dict[str, Run],
) -> None:
    vs, magnus = runs["vs"].row, runs["magnus"].row
    assert magnus.request_throughput > 1.66 * vs.request_throughput
    assert magnus.mean_response_s < 0.4 * vs.mean_response_s


def test_only_static_batches_generate_tokens_that_are_not_valid(runs: dict[str, Run]) -> None:
    assert runs["ccb"].num_tokens == runs["ccb"].num_valid_tokens
    assert runs["vs"].num_tokens > runs["glp"].num_tokens > runs["glp"].num_valid_tokens


def test_conservative_continuous_batching_admits_only_whom_it_has_reserved_max_tokens_for() -> None:
    """Blocks for two requests with all of their tokens, slots for
    seven: the third waits, in order of arrival.
    """
    two_requests = LIMITS.changed(num_blocks=2 * (32 + MAX_TOKENS) // 32)
    scheduler = continuous_scheduler(two_requests, SIZE)
    for number in range(5):
        prompt = np.arange(number, number + 30, dtype=np.int32)
        scheduler.submit(Ask("copy", "Copy:", "", prompt, len(prompt)).request(number, MAX_TOKENS), NO_TOKENS)
    plan = scheduler.plan()
    assert plan is not None
    admitted = [operation.tokens[0] for operation in plan.operations if isinstance(operation, Admit)]
    assert admitted == [0, 1]
