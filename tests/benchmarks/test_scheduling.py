"""The simulated side of benchmarks/scheduling, on made-up lengths:
the scheduler's own code by a virtual clock.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.scheduling.__main__ import Row, capacity, open_work, row_of
from benchmarks.scheduling.requests import MAX_TOKENS, Pool, Source
from benchmarks.scheduling.runs import Machine, Served, Steps, Work, simulate
from python_backends.nouns.request import ModelLimits
from python_backends.nouns.step import StepPlan
from python_backends.scheduling.policies import POLICIES
from python_backends.scheduling.step_time import StepTime
from python_backends.settings import SchedulingSettings

SLOTS = 16
LIMITS = ModelLimits(512, 1000, SLOTS, 2 * SLOTS, 32)
MACHINE = Machine.exact([0.02, 0.0005, 1e-6, 1e-4, 0.0])
TTFT_S, TPOT_S = 1.0, 0.1


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Answers of 40 tokens on average, predicted within a tenth; one in a hundred runs to its limit."""
    random, count = np.random.default_rng(5), 300
    lengths = np.clip(np.exp(random.normal(3.4, 0.8, count)), 3, 200).round()
    spread = np.exp(0.1 * np.array([-1.28, -0.67, 0, 0.67, 1.28, 2.33]))
    quantiles = (lengths * np.exp(random.normal(0, 0.1, count)))[:, None] * spread
    lengths = np.where(random.random(count) < 0.01, MAX_TOKENS, lengths).astype(np.int64)
    prompts = random.integers(10, 80, count)
    return pool_of(prompts, lengths, quantiles)


def pool_of(prompts: NDArray[np.int64], lengths: NDArray[np.int64], quantiles: NDArray[np.float64]) -> Pool:
    """History says the same of all of them."""
    told = np.tile(quantiles.mean(axis=0), (len(lengths), 1)).astype(np.float32)
    means = quantiles.mean(axis=1)
    return Pool(
        np.zeros(prompts.sum(), np.int32),
        np.cumsum(prompts),
        lengths,
        means,
        quantiles.astype(np.float32),
        np.full(len(lengths), means.mean()),
        told,
        prompts,
    )


def run(policy: str, work: Work) -> Served:
    return simulate(LIMITS, SchedulingSettings(policy), work, MACHINE)


def rows(pool: Pool, load: float, cv: float) -> dict[str, Row]:
    most = capacity(run, pool, 200, SLOTS)
    work = open_work(pool, most * load, cv, seconds=25.0, seed=2)
    oracle = Work(pool, work.due_s, work.places, source=Source.TRUTH)
    served = {policy: run(policy, work) for policy in ("fcfs", "ours")}
    served["oracle"] = run("ours", oracle)
    return {policy: row_of(policy, load, cv, each, TTFT_S, TPOT_S) for policy, each in served.items()}


@pytest.mark.parametrize(("load", "cv"), [(0.9, 1.0), (1.2, 1.0), (0.9, 4.0)])
def test_where_memory_is_scarce_predicted_lengths_double_the_goodput_and_no_tail_is_worse(
    pool: Pool, load: float, cv: float
) -> None:
    found = rows(pool, load, cv)
    fcfs, ours, oracle = (found[policy] for policy in ("fcfs", "ours", "oracle"))
    assert ours.goodput >= 2 * fcfs.goodput
    assert fcfs.mean_e2e_s - ours.mean_e2e_s >= 0.9 * (fcfs.mean_e2e_s - oracle.mean_e2e_s)
    assert ours.p99_e2e_s <= 1.1 * fcfs.p99_e2e_s
    assert ours.p99_ttft_s <= 1.1 * fcfs.p99_ttft_s


def test_nobody_is_passed_over_for_longer_than_the_bound(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "ours", replace(POLICIES["ours"], max_passed_over_s=3.0))
    ours = rows(pool, 1.5, 1.0)["ours"]
    assert 2.0 < ours.max_passed_over <= 3.0


def test_every_answer_has_its_length_and_times_are_in_order(pool: Pool) -> None:
    work = open_work(pool, 10.0, 4.0, seconds=5.0, seed=1)
    served = run("hrrn", work)
    assert (served.counts == pool.lengths[work.places]).all()
    assert (served.arrived_s < served.first_s).all()
    assert (served.first_s < served.last_s).all()
    again = run("hrrn", work)
    assert (served.last_s == again.last_s).all(), "the same run twice"


def test_a_lone_request_takes_what_its_steps_take() -> None:
    """A prompt of 30 tokens, then nine decode steps that attend to 31 to 39 tokens."""
    pool = pool_of(np.array([30]), np.array([10]), np.full((1, 6), 10.0))
    served = run("ours", Work(pool, np.array([1.0]), np.array([0])))
    assert served.first_s[0] - 1.0 == pytest.approx(0.02 + 30e-4)
    assert served.last_s[0] - served.first_s[0] == pytest.approx(
        9 * (0.02 + 0.0005) + sum(range(31, 40)) * 1e-6
    )


def test_simulated_steps_take_as_long_as_the_real_ones_did_all_together(pool: Pool) -> None:
    """Real ones that no model of step time has exactly right: every tenth takes
    four times as long, prompts by their square. Of fewer requests a run of long steps is seen in the sum.
    """
    steps = Steps()

    class Uneven(Machine):
        def seconds(self, plan: StepPlan) -> float:
            seconds = (0.01 + 1e-6 * len(plan.tokens) ** 2) * (4.0 if plan.number % 10 == 0 else 1.0)
            steps.observe(plan, seconds)
            return seconds

    work = Work(pool, np.zeros(240), np.arange(240))
    real = simulate(LIMITS, SchedulingSettings(), work, Uneven(StepTime(), np.ones(1), np.ones(1)))
    simulated = simulate(LIMITS, SchedulingSettings(), work, steps.machine())
    assert simulated.last_s.max() == pytest.approx(real.last_s.max(), rel=0.1)
    assert (simulated.last_s - simulated.arrived_s).mean() == pytest.approx(
        (real.last_s - real.arrived_s).mean(), rel=0.1
    )
