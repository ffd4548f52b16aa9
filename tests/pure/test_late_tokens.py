"""Late tokens are counted by cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.instance import loop
from python_backends.instance.build import build
from python_backends.instance.late_tokens import LateTokens
from python_backends.instance.loop import Instance, Parts
from python_backends.instance.spare_time import SpareTime, SpareWork
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import LATE_CAUSES, Load
from python_backends.nouns.request import ModelLimits
from python_backends.nouns.step import StepPlan
from python_backends.scheduling.step_time import StepTime
from python_backends.settings import EngineSettings, ModelSettings, Settings
from python_backends.triton_models.instance_loads import InstanceLoads
from python_backends.watching.metrics import ALL_LATE_CAUSES, Metrics
from tests.support.instance_link import Link, submit
from tests.support.toy_engine import TOY

BUNDLED = Path(__file__).resolve().parents[2] / "models/bundled"
TPOT_S = 0.1
ROW_S, PROMPT_S = 0.01, 0.001  # what a decode row and a token of a prompt take


def plan(num_rows: int, num_prompt_tokens: int = 0) -> StepPlan:
    """A step of rows that decode, and of one chunk."""
    spans = num_rows + (num_prompt_tokens > 0)
    ids: Any = np.zeros(spans, np.int32)
    lengths = np.array([1] * num_rows + [num_prompt_tokens] * (num_prompt_tokens > 0), np.int32)
    tokens = np.zeros(num_prompt_tokens, np.int32)
    return StepPlan(0, (), ids, ids, ids, lengths, num_rows, np.ones(spans, np.bool_), tokens)


class Late:
    """Steps of a loop whose clock is turned; a first one has been read."""

    def __init__(self) -> None:
        times = StepTime()
        times.coefficients = [0.0, ROW_S, 0.0, PROMPT_S, 0.0]
        self.late, self.now_s = LateTokens(times, TPOT_S), 100.0
        self.late.collected(plan(0, 16), self.now_s, 0.016)

    def step(self, plan: StepPlan, took_s: float, worked_s: float = 0.0, host_s: float = 0.0) -> None:
        self.late.worked(worked_s)
        self.now_s += worked_s + host_s + took_s
        self.late.collected(plan, self.now_s, took_s)

    def counts(self) -> dict[str, int]:
        counts = dict(zip(LATE_CAUSES, self.late.take(), strict=False))
        return {cause: count for cause, count in counts.items() if count}


def test_tokens_in_time_are_not_counted() -> None:
    late = Late()
    for _ in range(5):
        late.step(plan(4), 0.04, worked_s=0.03, host_s=0.02)
    assert late.late.take() == ()


@pytest.mark.parametrize(
    ("step", "counts"),
    [
        ({"plan": plan(4, 70), "took_s": 0.11}, {"prompts": 4}),
        ({"plan": plan(4), "took_s": 0.04, "worked_s": 0.07}, {"spare_time": 4}),
        ({"plan": plan(4), "took_s": 0.12, "worked_s": 0.02}, {"slow_step": 4}),
        ({"plan": plan(4), "took_s": 0.04, "host_s": 0.07}, {"host": 4}),
        ({"plan": plan(11, 500), "took_s": 0.61}, {"decode": 11}),
        ({"plan": plan(0, 500), "took_s": 0.5}, {}),
    ],
    ids=["prompts", "spare time", "slow step", "host", "rows alone", "a prompt alone"],
)
def test_a_late_step_makes_the_tokens_of_its_decode_rows_late_by_its_longest_part(
    step: dict[str, Any], counts: dict[str, int]
) -> None:
    late = Late()
    late.step(**step)
    assert late.counts() == counts
    late.step(plan(4), 0.04)
    assert late.counts() == {}, "they are told once, and spare time counts for one step alone"


def test_no_token_waits_while_the_loop_is_idle() -> None:
    """A request that has moved here decodes in the first step after it."""
    late = Late()
    late.late.idle()
    late.step(plan(1), 0.01, host_s=60.0)
    assert late.counts() == {}
    late.step(plan(1), 0.01, host_s=60.0)
    assert late.counts() == {"host": 1}


def test_an_evicted_request_has_one_late_token() -> None:
    late = Late()
    late.late.evicted(3)
    assert late.counts() == {"evicted": 3}


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Slow(SpareWork):
    """Work that takes a second before each step."""

    has_work = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def work(self, slack_s: float, plan: StepPlan | None) -> bool:
        self._clock.now_s += 1.0
        return True


def served(work: Slow, tpot_s: float) -> dict[str, int]:
    """Late tokens by cause of two answers of a loop, by whose clock only `work` takes time."""
    settings = EngineSettings(kind=TOY, slots=2, block_tokens=4, token_budget=16)
    scheduler, running = build(Settings(model=ModelSettings(directory=str(BUNDLED)), engine=settings))
    link = Link([[submit(0, 9, max_tokens=20), submit(1, 5, max_tokens=30)]])
    instance = Instance(
        scheduler, running, link, lambda _: None, parts=Parts(spare_time=SpareTime([work], tpot_s))
    )
    while link.num_ended < 2:
        instance.turn()
    work.has_work = False  # an idle loop beats in each turn
    instance.turn()
    running.close()
    counts = dict.fromkeys(LATE_CAUSES, 0)
    for load in link.loads:
        for cause, count in zip(LATE_CAUSES, load.late_tokens, strict=False):
            counts[cause] += count
    return {cause: count for cause, count in counts.items() if count}


def test_the_loop_counts_each_token_after_the_first_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)
    assert served(Slow(clock), tpot_s=0.5) == {"spare_time": 19 + 29}
    assert served(Slow(clock), tpot_s=1.5) == {}


def test_heartbeats_bring_late_tokens_to_metrics_and_every_cause_is_there_from_the_start() -> None:
    metrics = Metrics()
    assert late_tokens(metrics) == dict.fromkeys(ALL_LATE_CAUSES, 0)
    loads, limits = InstanceLoads(metrics, None), ModelLimits(64, 100, 4, 100, 16)
    loads.heard(InstanceLoad(0, limits, Load(late_tokens=(0, 4, 0, 0, 2, 0))))
    loads.heard(InstanceLoad(0, limits, Load(late_tokens=(0, 1))))  # of another version of the code
    loads.heard(InstanceLoad(0, limits, Load()))
    assert {cause: count for cause, count in late_tokens(metrics).items() if count} == {
        "prompts": 5,
        "host": 2,
    }


def late_tokens(metrics: Metrics) -> dict[str, int]:
    return metrics.sums("gapless_late_tokens_total", "cause")
