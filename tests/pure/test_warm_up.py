"""An engine's first steps: every kind of step is among them, and
nothing of them is left for those who come.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.common.recorded_engine import RecordedEngine
from python_backends.engine.largest_steps import DRAWN
from python_backends.instance import warm_up as warm_up_module
from python_backends.instance.warm_up import GREEDY, warm_up
from python_backends.nouns.request import Request, Sampling
from python_backends.nouns.step import Admit, Release, StepPlan
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.step_time import StepTime
from python_backends.settings import EngineSettings, ModelSettings, Settings
from python_backends.text.door.table import FIELDS
from tests.support.toy_answers import toy_answer
from tests.support.toy_engine import TOY, ToyEngine


def warm(**engine: int) -> RecordedEngine:
    model = ModelSettings(max_model_tokens=engine.pop("max_model_tokens", 64))
    toy = ToyEngine(Settings(model=model, engine=EngineSettings(kind=TOY, block_tokens=4, **engine)))
    recorded = RecordedEngine(toy, toy.limits)
    warm_up(recorded, SlotScheduler(toy.limits, token_budget=128))
    return recorded


def samplings(plan: StepPlan, running: dict[int, Sampling]) -> list[Sampling]:
    for operation in plan.operations:
        if isinstance(operation, Admit):
            running[operation.slot] = operation.sampling
        elif isinstance(operation, Release):
            del running[operation.slot]
    return list(running.values())


def test_the_first_steps_ask_for_all_that_a_request_can_ask_of_the_sampler() -> None:
    """What they left out would be compiled under the first request that asks for it."""
    asked = {field.sampling: field.default for field in FIELDS.values() if field.sampling}
    del asked["min_tokens"]  # it bans stop ids, by the same operations as bad words
    assert [name for name, default in asked.items() if getattr(DRAWN, name) == default] == []
    assert DRAWN.bad_words
    assert DRAWN.logit_bias


def test_there_are_prompts_and_decodes_drawn_and_greedy() -> None:
    running: dict[int, Sampling] = {}
    kinds = set()
    for plan in warm(slots=4).plans:
        drawn = any(sampling.temperature > 0 for sampling in samplings(plan, running))
        kinds.add((bool(len(plan.tokens)), bool(plan.num_decodes), drawn))
    assert kinds >= {(True, False, True), (False, True, True), (False, True, False)}


@pytest.mark.parametrize(
    "limits", [{"slots": 4}, {"slots": 1}, {"slots": 2, "kv_blocks": 3, "max_model_tokens": 12}]
)
def test_a_slot_whose_sampling_looks_back_is_released(limits: dict[str, int]) -> None:
    """The last release waits for the next step, which nobody plans any more."""
    running: dict[int, Sampling] = {}
    for plan in warm(**limits).plans:
        left = samplings(plan, running)
    assert left == [GREEDY]


def test_a_model_of_a_single_token_more_than_its_prompt_is_warmed_up_too() -> None:
    assert warm(slots=2, max_model_tokens=2).plans


def test_it_tells_what_steps_take_so_that_the_first_ones_of_a_large_model_are_not_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that each token of a step puts forward by 10 ms, each step by 50 ms."""
    engine, times = warm(max_model_tokens=64), StepTime()
    clock = SimpleNamespace(monotonic=lambda: sum(0.05 + 0.01 * plan.num_tokens for plan in engine.plans))
    monkeypatch.setattr(warm_up_module, "time", clock)
    times.learn(*warm_up(engine, SlotScheduler(engine.limits, token_budget=128)))
    assert 0.16 < times.chunk_s(0, 32) < 0.48
    assert times.seconds(1, 33) > 0.05


def test_those_who_come_are_answered_as_if_nothing_had_been() -> None:
    engine = warm(slots=2)
    scheduler = SlotScheduler(engine.limits, token_budget=128)
    prompt, sampling = np.zeros(32, np.int32), Sampling(8)  # that of the made-up requests
    scheduler.submit(Request(0, prompt, sampling), np.zeros(0, np.int32))
    tokens: list[int] = []
    while (plan := scheduler.plan()) is not None:
        engine.launch(plan)
        tokens += scheduler.apply(plan, engine.collect()).tokens.tolist()
    assert tokens == toy_answer(prompt, sampling, engine.limits.vocab_size)
