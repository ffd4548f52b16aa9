"""Steady runs: counts that are not kept row by row are exact whenever somebody looks, and a run says on the wire what is new."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.host_time_loop import NoEngine, steady_loop
from python_backends.instance.build import build
from python_backends.instance.loop import Instance as Loop
from python_backends.nouns.messages import MoreTokens, pack, reader
from python_backends.nouns.request import Finish, Ids, Request, Sampling
from python_backends.nouns.step import StepPlan, Tokens
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.state.slots import SlotTable, rows_of
from python_backends.scheduling.step_time import StepTime
from python_backends.settings import EngineSettings, Settings
from python_backends.wires.token_runs import RunsIn, RunsOut
from tests.pure.examples import examples
from tests.pure.test_instance import Link, submit
from tests.pure.test_scheduling import Instance, answer, request, write_vocabulary

SLOTS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("toy"))


# --- the slot table


def sequence(number: int, length: int = 3) -> Sequence:
    return Sequence(Request(number, np.arange(length, dtype=np.int32), Sampling(max_tokens=99)), np.zeros(0, np.int32), number, 0)


def full_table() -> SlotTable:
    table = SlotTable(SLOTS, 100)
    for number in range(SLOTS):
        table.seat(sequence(number, 3 + number), num_computed=2 + number, limit=99)
    return table


@given(runs=st.lists(st.tuples(st.sets(st.integers(0, SLOTS - 1), min_size=1), st.integers(1, 6), st.integers(0, 6)), max_size=8))
@examples
def test_counts_and_tokens_are_those_of_a_table_that_writes_every_step(runs: list[tuple[set[int], int, int]]) -> None:
    """Each run plans some steps of some rows and reads some; the next run's rows are other ones."""
    table, made = full_table(), 0
    planned, known = [np.array([3, 4, 5, 6]) for _ in range(2)]
    tokens = [[*range(3 + row)] for row in range(SLOTS)]
    for chosen, num_planned, num_read in runs:
        slots: Ids = np.array(sorted(chosen), np.int32)
        rows = rows_of(slots)
        for _ in range(num_planned):
            table.decode(rows)
            planned[slots] += 1
        for _ in range(num_read):
            made += 1
            table.append(slots, np.full(len(slots), made, np.int32))
            known[slots] += 1
            for slot in slots.tolist():
                tokens[slot].append(made)
    assert table.known.tolist() == known.tolist()
    assert table.planned.tolist() == planned.tolist()
    assert table.computed.tolist() == (planned - 1).tolist()
    assert [table.tokens[row, : known[row]].tolist() for row in range(SLOTS)] == tokens


def test_who_leaves_in_a_run_takes_all_its_tokens_along_and_leaves_nothing_to_who_comes() -> None:
    table = full_table()
    leaving = table.sequences[1]
    assert leaving is not None
    slots: Ids = np.arange(SLOTS, dtype=np.int32)
    rows = rows_of(slots)
    for token in (50, 51, 52):
        table.decode(rows)
        table.append(slots, np.full(SLOTS, token, np.int32))
    table.decode(rows)  # launched, and not read yet
    table.leave(leaving)
    assert leaving.tokens.tolist() == [0, 1, 2, 3, 50, 51, 52]
    assert table.seat(sequence(9, 5), num_computed=0, limit=99) == 1
    assert (table.known[1], table.planned[1], table.computed[1]) == (5, 5, 0)
    assert table.tokens[1, :5].tolist() == [0, 1, 2, 3, 4]
    assert table.planned[[0, 2, 3]].tolist() == [7, 9, 10]


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
        asks = [request(number, [number + 1] * 8, **{"max_tokens": 50 + number, **sampling}) for number in range(3)]
        for ask in asks:
            instance.submit(ask)
        for turn in range(60):
            disturb(instance, what, turn)
            instance.turn()
            if looks:
                counts_add_up(instance)
        instance.run()
        ended = [ask for ask in asks if what != "somebody is cancelled" or ask.request_id != 1]
        assert all(instance.answers[ask.request_id] == answer(ask) for ask in ended)
        assert (instance.scheduler.num_evictions > 0) == (what == "blocks run out")


def test_steady_steps_share_their_arrays_and_a_change_ends_that(model: Path) -> None:
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
    assert len({id(plan.slots) for plan in steady}) == len({id(plan.firsts) for plan in steady}) == 1
    assert [plan.starts.tolist() for plan in steady] == [[4 + turn] * 3 for turn in range(7)]
    assert after[0].slots is not steady[0].slots
    assert [plan.starts.tolist() for plan in after] == [[11 + turn] * 2 for turn in range(4)]


def test_the_loads_of_a_run_are_those_of_its_starts() -> None:
    times, plan = StepTime(), _decodes(3)
    for number in range(1, 4):
        assert times.loads(plan) == (3, int(plan.starts.sum()) + 3, 0, 0)
        plan = plan.goes_on(number)
    assert times.loads(_decodes(2)) == (2, 10 + 11 + 2, 0, 0)


def _decodes(count: int) -> StepPlan:
    slots: Ids = np.arange(count, dtype=np.int32)
    ones = np.ones(count, np.int32)
    return StepPlan(0, (), slots, ones, slots + 10, ones, ones.astype(np.uint8), ones.astype(np.bool_), slots[:0])


# --- the wire


def steps(count: int, ends_at: int = -1) -> list[Tokens]:
    """Of a run of three rows."""
    ids, epochs, firsts = np.array([7, 8, 9], np.int64), np.array([0, 1, 0], np.int32), np.array([4, 0, 2], np.int32)
    finishes = [np.array([0, Finish.STOP * (step == ends_at), 0], np.uint8) for step in range(count)]
    return [Tokens(ids, epochs, firsts, np.full(3, 10 + step, np.int32), finishes[step], None, step) for step in range(count)]


def rows(tokens: Tokens) -> list[list[int]]:
    arrays = (tokens.request_ids, tokens.epochs, tokens.indices, tokens.tokens, tokens.finishes)
    return [array.tolist() for array in arrays]


def test_a_run_says_once_whose_its_tokens_are_and_comes_out_whole() -> None:
    said, heard = RunsOut(), RunsIn()
    read = reader(tuple[Tokens | MoreTokens, ...])
    sent = steps(4, ends_at=3) + steps(2)
    frames = [(pack(short), [frame.tobytes() for frame in behind]) for short, behind in (said.shorten([tokens]) for tokens in sent)]
    assert [len(behind) for _, behind in frames] == [0, 1, 1, 1, 0, 1]
    came = [message for frame, behind in frames for message in heard.complete(read(frame), behind)]
    assert [rows(message) for message in came] == [rows(tokens) for tokens in sent]


def test_other_messages_and_empty_tokens_pass_by_as_they_are() -> None:
    said, heard = RunsOut(), RunsIn()
    first, second = steps(2)
    messages = ["a", first, "b", second]
    out = heard.complete(*said.shorten(messages))
    assert out[0] == "a"
    assert out[2] == "b"
    assert [rows(out[1]), rows(out[3])] == [rows(first), rows(second)]


def test_a_run_that_has_not_begun_is_heard_as_a_fault() -> None:
    said = RunsOut()
    first, second = steps(2)
    said.shorten([first])
    with pytest.raises(AssertionError, match="has not begun"):
        RunsIn().complete(*said.shorten([second]))


# --- the whole loop


def test_a_steady_step_looks_at_no_row_by_itself() -> None:
    """Ten steps with 64 slots run through as many lines as with 4, but for a few of the step-time model: counted, not timed."""
    few, many = _lines_of_steady_steps(4), _lines_of_steady_steps(64)
    assert few > 300
    assert abs(many - few) < 60, "less than one for each row more"


def _lines_of_steady_steps(slots: int) -> int:
    """Lines of our Python that ten steady steps run through, without the engine's calls."""
    scheduler, toy = build(Settings(engine=EngineSettings(kind="toy", slots=slots, token_budget=slots * 8)))
    instance = Loop(scheduler, NoEngine(toy), Link([[submit(number, 4, max_tokens=90) for number in range(slots)]]), lambda: None)
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
