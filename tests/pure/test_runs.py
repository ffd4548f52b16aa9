"""Runs: steps in which the same slots decode and nothing else happens."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.host_time.loop import NoEngine, steady_loop
from python_backends.instance.build import build
from python_backends.instance.loop import Instance as Loop
from python_backends.nouns.request import Ids
from python_backends.nouns.stages import READ_EVERY
from python_backends.nouns.step import Release, StepPlan
from python_backends.scheduling.step_time import StepTime
from python_backends.settings import EngineSettings, Settings
from tests.support.instance_link import Link, submit
from tests.support.scheduling import Instance, answer, request, write_vocabulary
from tests.support.toy_engine import TOY


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("toy"))


# --- the scheduler


def counts_add_up(instance: Instance) -> None:
    """What the table believes of each row is what the answers that came out say."""
    table = instance.scheduler.slots
    for seated in table.running():
        slot, output = seated.slot, instance.answers[seated.request_id]
        tokens = [*seated.request.prompt.tolist(), *output]
        assert table.known[slot] == len(tokens)
        assert table.tokens[slot, : table.known[slot]].tolist() == tokens
        if table.computed[slot] >= table.targets[slot]:
            in_flight = sum(slot in plan.slots.tolist() for plan in instance.launched)
            assert table.computed[slot] == table.planned[slot] - 1
            assert table.planned[slot] <= min(table.known[slot] + in_flight, table.limits[slot])
            assert table.planned[slot] <= table.capacity[slot] + 1


def disturb(instance: Instance, what: str, turn: int) -> None:
    if what == "somebody comes" and turn in (7, 19):
        instance.submit(request(100 + turn, [5] * 7, max_tokens=30))
    if what == "somebody is cancelled" and turn == 9:
        instance.scheduler.cancel(1)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    ("what", "options", "sampling"),
    [
        ("somebody comes", {}, {}),
        ("somebody is cancelled", {}, {}),
        ("blocks run out", {"blocks": 30, "reserve": lambda sequence: 0}, {}),
        ("one stops after min_tokens", {}, {"min_tokens": 5, "stop_ids": tuple(range(0, 97, 6))}),
        ("blocks are added one at a time", {"reserve": lambda sequence: 0}, {}),
    ],
)
def test_a_run_that_is_broken_off_leaves_exact_counts(
    model: Path, depth: int, what: str, options: dict[str, Any], sampling: dict[str, Any]
) -> None:
    """Looked at after every step, and only at the end: both give the whole answers."""
    for looks in (True, False):
        instance = Instance(model, depth=depth, **options)
        asks = [
            request(number, [number + 1] * 8, **{"max_tokens": 50 + number, **sampling})
            for number in range(3)
        ]
        for ask in asks:
            instance.submit(ask)
        for turn in range(60):
            disturb(instance, what, turn)
            instance.turn()
            if looks:
                counts_add_up(instance)
        instance.run()
        ended = [ask for ask in asks if what != "somebody is cancelled" or ask.request_id != 1]
        for ask in ended:
            assert instance.answers[ask.request_id] == answer(ask)
            due = range(0, len(answer(ask)), READ_EVERY)
            assert instance.read >= {(ask.request_id, written) for written in due}
        assert (instance.scheduler.num_evictions > 0) == (what == "blocks run out")


def test_the_steps_of_a_run_have_one_number_and_a_change_ends_the_run(model: Path) -> None:
    instance = Instance(model)
    for number in range(3):
        instance.submit(request(number, [number + 1] * 4, max_tokens=40))
    plans: list[StepPlan] = []
    launch = instance.engine.launch
    instance.engine.launch = lambda plan: (plans.append(plan), launch(plan))  # type: ignore[assignment, func-returns-value]
    for turn in range(12):
        if turn == 8:
            instance.scheduler.cancel(1)
        instance.turn()
    steady, after = plans[1:8], plans[8:]
    assert len({plan.run for plan in steady}) == 1
    assert [plan.step_in_run for plan in steady] == list(range(7))
    assert not any(plan.operations for plan in steady[1:])
    assert [plan.starts.tolist() for plan in steady] == [[4 + turn] * 3 for turn in range(7)]
    assert {plan.run for plan in after}.isdisjoint({plans[0].run, steady[0].run})
    assert [plan.starts.tolist() for plan in after] == [[11 + turn] * 2 for turn in range(4)]


def test_the_loads_of_a_run_are_those_of_its_starts() -> None:
    times, plan = StepTime(), _decodes(3)
    for number in range(1, 4):
        assert times.loads(plan) == (3, int(plan.starts.sum()) + 3, 0, 0)
        plan = plan.next_in_run(number)
    assert times.loads(_decodes(2)) == (2, 10 + 11 + 2, 0, 0)


def test_the_next_plan_of_a_run_has_all_of_the_last_one_but_its_place() -> None:
    first = _decodes(3)
    assert first.starts.tolist() == [10, 11, 12]
    changed: dict[str, Any] = {"number": 7, "operations": (Release(0, 1),), "step_in_run": 1}
    after = first.next_in_run(7, changed["operations"])
    assert vars(after) == vars(replace(first, **changed))
    assert after.starts.tolist() == [11, 12, 13]


def _decodes(count: int) -> StepPlan:
    slots: Ids = np.arange(count, dtype=np.int32)
    ones = np.ones(count, np.int32)
    return StepPlan(0, (), slots, ones, slots + 10, ones, count, ones.astype(np.bool_), slots[:0])


# --- the whole loop


def test_a_steady_step_looks_at_no_row_by_itself() -> None:
    """Ten steps with 64 slots run through as many lines as with 4, but for a
    few of the step-time model: counted, not timed.
    """
    # the least of some: the step-time model does more where steps took unusually long
    few, many = (min(_lines_of_steady_steps(slots) for _ in range(5)) for slots in (4, 64))
    assert few > 300
    assert abs(many - few) < 60, "less than one for each row more"


def _lines_of_steady_steps(slots: int) -> int:
    """Lines of our Python that ten steady steps run through, without the engine's calls."""
    scheduler, toy = build(Settings(engine=EngineSettings(kind=TOY, slots=slots, token_budget=slots * 8)))
    instance = Loop(
        scheduler,
        NoEngine(toy),
        Link([[submit(number, 4, max_tokens=90) for number in range(slots)]]),
        lambda _: None,
    )
    instance.link.publish = lambda messages: None  # type: ignore[method-assign]
    for _ in range(70):  # the step-time model learns from every one of the first 64
        instance.turn()
    instance._heartbeat._beaten_s = time.monotonic() + 60  # none is due
    count = 0

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line" and "python_backends" in frame.f_code.co_filename
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    for _ in range(10):
        instance.turn()
    sys.settrace(before)
    return count


def test_the_loop_whose_host_time_is_measured_has_all_slots_decoding() -> None:
    with steady_loop("none", 64, 0) as loop:
        assert len(loop.steady_steps(3, sweeps=False)) == 3
