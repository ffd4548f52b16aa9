"""The instance's loop: the same tokens however many steps are launched ahead, and faults that are heard."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common.resending_scheduler import ResendingScheduler
from python_backends.instance.build import build
from python_backends.instance.lead import FIRST_S, SPARE_S, Lead
from python_backends.instance.loop import Instance, Parts
from python_backends.instance.spare_time import SpareTime, SpareWork
from python_backends.nouns.messages import Cancel, Failed
from python_backends.nouns.step import HiddenStates, StepPlan, Tokens
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.step_time import StepTime
from python_backends.settings import (
    EngineSettings,
    ModelSettings,
    SchedulingSettings,
    Settings,
)
from python_backends.watching.metrics import GAP_BOUNDS_S, Histogram, Metrics
from tests.support.instance_link import Link, submit
from tests.support.toy_engine import TOY

ROOT = Path(__file__).resolve().parents[2]


def served(
    steps_ahead: int,
    inbox: Sequence[list[Any]],
    num_ends: int,
    scheduler: type[SlotScheduler] = SlotScheduler,
) -> Link:
    engine = EngineSettings(kind=TOY, slots=3, block_tokens=4, token_budget=16)
    model = ModelSettings(directory=str(ROOT / "models/bundled"))
    built, running = build(Settings(model=model, engine=engine))
    link = Link(inbox)
    instance = Instance(scheduler(built.limits, 16), running, link, lambda _: None, steps_ahead)
    while link.num_ended < num_ends:
        instance.turn()
    running.close()
    return link


def serve(
    steps_ahead: int,
    inbox: Sequence[list[Any]],
    num_ends: int,
    scheduler: type[SlotScheduler] = SlotScheduler,
) -> dict[int, list[int]]:
    return served(steps_ahead, inbox, num_ends, scheduler).answers


def test_tokens_are_the_same_however_many_steps_are_launched_ahead() -> None:
    inbox = [[submit(number, 5 + 3 * number, max_tokens=10 + number)] for number in range(8)]
    expected = serve(0, inbox, 8)
    assert [len(expected[number]) for number in range(8)] == [10 + number for number in range(8)]
    assert serve(1, inbox, 8) == serve(2, inbox, 8) == expected


@pytest.mark.parametrize("steps_ahead", [0, 1, 2])
def test_the_state_at_the_end_of_a_prompt_is_published_once_before_its_first_token(steps_ahead: int) -> None:
    """Also of prompts in chunks, and not of a request that goes on after its first tokens."""
    goes_on = submit(9, 40, max_tokens=10).changed(delivered=np.arange(3, dtype=np.int32))
    inbox = [*[[submit(number, 5 + 10 * number, max_tokens=6)] for number in range(5)], [goes_on]]
    published = served(steps_ahead, inbox, 6).published
    states = [each for each in published if isinstance(each, HiddenStates)]
    lengths = {
        int(number): int(state[0])
        for each in states
        for number, state in zip(each.request_ids, each.by_row(), strict=True)
    }
    assert lengths == {number: 5 + 10 * number for number in range(5)}
    assert sum(len(each.request_ids) for each in states) == 5
    assert {each.layer for each in states} == {1}
    told: set[int] = set()
    for each in published:
        if isinstance(each, HiddenStates):
            told |= set(each.request_ids.tolist())
        elif isinstance(each, Tokens):
            assert set(each.request_ids.tolist()) <= told | {9}


@pytest.mark.parametrize("steps_ahead", [0, 1, 2])
def test_while_it_is_written_the_state_at_every_so_many_tokens_is_published_once(steps_ahead: int) -> None:
    """Before the next token, whatever others do; none of them after the last stage."""
    inbox = [[submit(number, 5 + number, max_tokens=70 + number)] for number in range(5)]
    published = served(steps_ahead, inbox, 5).published
    found, told = [], dict.fromkeys(range(5), 0)
    for each in published:
        if isinstance(each, HiddenStates):
            for number, written, state in zip(
                each.request_ids.tolist(), each.num_written.tolist(), each.by_row(), strict=True
            ):
                assert told[number] == written
                assert state.tolist() == ([5 + number, 4 + number + written] if written else [5 + number, 0])
                found.append((number, written))
        elif isinstance(each, Tokens):
            for number in each.request_ids.tolist():
                told[number] += 1
    assert sorted(found) == [(number, written) for number in range(5) for written in (0, 32, 64)]


def test_a_stop_that_is_read_late_gives_no_token_more() -> None:
    free = serve(0, [[submit(0, 9, max_tokens=20)]], 1)[0]
    stopping = submit(0, 9, max_tokens=20, stop_ids=(free[6],))
    inbox: list[list[Any]] = [[stopping], [], [], [], [], [submit(7, 4, max_tokens=5)]]
    for steps_ahead in (0, 1, 2):
        assert serve(steps_ahead, inbox, 2)[0] == free[:7]


def test_others_go_undisturbed_when_one_is_cancelled_while_steps_are_under_way() -> None:
    alone = serve(1, [[submit(5, 12, max_tokens=30)]], 1)[5]
    inbox = [[submit(4, 8, max_tokens=40), submit(5, 12, max_tokens=30)], [], [], [], [Cancel(4)]]
    assert serve(1, inbox, 1)[5] == alone


class Prewarming(SpareWork):
    """Work that stands before every step: all that another kind of it has to say."""

    has_work = True

    def __init__(self) -> None:
        self.given: list[tuple[float, bool]] = []  # slack and whether the loop was idle

    def work(self, slack_s: float, plan: StepPlan | None) -> bool:
        self.given.append((slack_s, plan is None))
        return True


def test_work_before_a_step_is_no_gap_between_steps() -> None:
    """And it gets no time before a step with a prompt."""
    engine = EngineSettings(kind=TOY, slots=3, block_tokens=4, token_budget=16)
    scheduler, running = build(
        Settings(model=ModelSettings(directory=str(ROOT / "models/bundled")), engine=engine)
    )
    link = Link([[], [submit(0, 9, max_tokens=20), submit(1, 5, max_tokens=30)]])
    work = Prewarming()
    parts = Parts(spare_time=SpareTime([work], tpot_s=1.0, idle_s=1.0))
    instance = Instance(scheduler, running, link, lambda _: None, parts=parts)
    while link.num_ended < 2:
        instance.turn()
    instance._heartbeat.is_due = lambda _: True  # type: ignore[method-assign]
    instance.turn()
    running.close()
    assert work.given[0] == (1.0, True)
    assert work.given[1] == (0.0, False)
    assert all(0 < slack_s < 1.0 for slack_s, is_idle in work.given[2:] if not is_idle)
    assert link.loads
    assert all(not any(load.gap_counts) for load in link.loads)


class NewAdapter:
    """News of an adapter come while the loop waits for messages."""

    has_news, is_loading = True, False

    def step(self) -> list[Failed]:
        self.has_news = False
        return []


def test_news_of_an_adapter_end_the_wait_of_an_idle_loop() -> None:
    """Once the loop waited for messages until one came: an idle instance sent no heartbeat and was killed."""
    engine = EngineSettings(kind=TOY, slots=3, block_tokens=4)
    scheduler, running = build(
        Settings(model=ModelSettings(directory=str(ROOT / "models/bundled")), engine=engine)
    )
    link, adapters = Link([]), NewAdapter()
    parts = Parts(adapters=adapters)  # type: ignore[arg-type]
    instance = Instance(scheduler, running, link, lambda _: None, parts=parts)
    turn = threading.Thread(target=instance.turn, daemon=True)
    turn.start()
    turn.join(60)
    assert not turn.is_alive()
    assert not adapters.has_news
    assert len(link.loads) == 1
    running.close()


@pytest.mark.parametrize(("policy", "blocks"), [("fcfs", 14), ("ours", 14)])
def test_an_instance_publishes_the_peak_of_its_future_memory(policy: str, blocks: int) -> None:
    """Prompts of 8 and answers of 20 tokens, in blocks of 4: seven
    blocks each, whether reserved or believed.
    """
    engine = EngineSettings(kind=TOY, slots=3, block_tokens=4, options="step_ms=20")
    scheduler, running = build(Settings(engine=engine, scheduling=SchedulingSettings(policy)))
    link = Link([[submit(1, 8, max_tokens=20), submit(50, 8, max_tokens=20)]])
    instance = Instance(scheduler, running, link, lambda _: None)
    while link.num_ended < 2:
        instance.turn()
    instance.turn()
    running.close()
    assert max(load.peak_blocks for load in link.loads) == blocks
    assert link.loads[-1].peak_blocks == 0


def test_the_lead_is_what_launches_of_that_kind_took_and_a_little_more() -> None:
    lead = Lead()
    assert lead.seconds(with_prompts=True) == lead.seconds(with_prompts=False) == SPARE_S + FIRST_S
    for number in range(128):
        lead.observe(False, 0.050 if number % 40 == 0 else 0.0002)  # what is rare makes no plan early
    assert lead.seconds(with_prompts=False) == pytest.approx(SPARE_S + 0.0002)
    assert lead.seconds(with_prompts=True) == pytest.approx(SPARE_S + 0.0002)
    lead.observe(True, 0.006)
    assert lead.seconds(with_prompts=True) == pytest.approx(SPARE_S + 0.006)
    assert lead.seconds(with_prompts=False) == pytest.approx(SPARE_S + 0.0002)


def test_the_loop_learns_how_long_its_launches_take() -> None:
    """An engine whose launch takes 5 ms of the host: never less is kept for it."""
    engine = EngineSettings(kind=TOY, slots=2, block_tokens=4)
    scheduler, toy = build(Settings(engine=engine))
    launch = toy.launch

    def slow(plan: StepPlan) -> None:
        time.sleep(0.005)
        launch(plan)

    toy.launch = slow  # type: ignore[method-assign]
    link = Link([[submit(1, 8, max_tokens=20)]])
    instance = Instance(scheduler, toy, link, lambda _: None, steps_ahead=1)
    while link.num_ended < 1:
        instance.turn()
    toy.close()
    assert instance._lead.seconds(with_prompts=False) >= SPARE_S + 0.005
    assert instance._lead.seconds(with_prompts=True) >= SPARE_S + 0.005


def test_a_step_is_expected_to_take_what_steps_like_it_took() -> None:
    times, decode, prefill = StepTime(), _plan(0), _plan(100)
    assert times.expected_s(decode) == 0
    for _ in range(30):
        times.observe(decode, 0.010)
        times.observe(prefill, 0.030)
    assert times.expected_s(decode) == pytest.approx(0.010)
    assert times.expected_s(_plan(200)) == pytest.approx(0.050)


def test_a_step_that_took_far_too_long_is_soon_forgotten() -> None:
    times, decode, prefill = StepTime(), _plan(0), _plan(100)
    times.observe(prefill, 6.0)
    times.observe(decode, 5.0)
    assert times.expected_s(decode) > 1
    for _ in range(4):
        times.observe(decode, 0.010)
    assert times.expected_s(decode) == pytest.approx(0.010, rel=0.01)
    assert times.expected_s(prefill) > 0.5, "nothing was seen that says otherwise"
    for _ in range(4):
        times.observe(prefill, 0.030)
    assert times.expected_s(prefill) == pytest.approx(0.030, rel=0.01)
    assert times.expected_s(decode) == pytest.approx(0.010, rel=0.01)


def test_learning_takes_few_steps_also_where_times_are_forgotten_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time that it learns takes longer than all else that the loop does in a step."""
    times, learn, learned = StepTime(), StepTime.learn, list[int]()

    def counted(times: StepTime, loads: Any, seconds: Any) -> None:
        learned.append(len(seconds))
        learn(times, loads, seconds)

    monkeypatch.setattr(StepTime, "learn", counted)
    for number in range(64):
        times.observe(_plan(0), 0.010 + number * 1e-6)
    assert learned[:3] == [1, 1, 2], "the first ones are known at once"
    assert len(learned) < 20
    learned.clear()
    for number in range(640):
        times.observe(_plan(0), 0.001 if number // 10 % 2 else 0.025)
    assert len(learned) < 300


def test_what_nearly_every_step_takes_at_least_is_what_the_quick_ones_took() -> None:
    times = StepTime()
    assert times.least_s(_plan(0)) == 0
    for number in range(320):
        times.observe(_plan(0), 0.006 if number % 10 == 0 else 0.010)
    assert times.least_s(_plan(0)) == pytest.approx(0.006, rel=0.05)


def test_steps_with_prompts_and_steps_without_are_quick_each_in_their_own_way() -> None:
    times = StepTime()
    for number in range(640):
        if number % 8 == 0:
            times.observe(_plan(100), 0.020 if number % 16 == 0 else 0.040)
        else:
            times.observe(_plan(0), 0.010)
    assert times.least_s(_plan(0)) == pytest.approx(0.010, rel=0.05)
    assert times.least_s(_plan(100)) == pytest.approx(0.020, rel=0.1)


def _plan(num_prefill_tokens: int) -> StepPlan:
    empty: Any = np.zeros(0, np.int32)
    return StepPlan(0, (), empty, empty, empty, empty, 0, empty, np.zeros(num_prefill_tokens, np.int32))


def gaps_of(link: Link) -> tuple[int, float]:
    """How many token gaps the heartbeats have told of, and their sum in seconds."""
    return sum(sum(load.gap_counts) for load in link.loads), sum(load.gap_sum_s for load in link.loads)


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_gaps_between_steps_with_work_waiting_are_counted_and_none_after_idling(steps_ahead: int) -> None:
    engine = EngineSettings(kind=TOY, slots=1, options="step_ms=5")
    scheduler, running = build(Settings(engine=engine))
    link = Link([[submit(0, 4, max_tokens=10)]])
    instance = Instance(scheduler, running, link, lambda _: None, steps_ahead)
    while link.num_ended < 1:
        instance.turn()
    instance.turn()
    time.sleep(0.05)
    link.inbox = [[submit(1, 4, max_tokens=10)]]
    while link.num_ended < 2:
        instance.turn()
    instance.turn()
    assert gaps_of(link)[0] == 2 * 9


def test_a_step_ahead_leaves_no_gap_and_one_after_the_other_leaves_the_loops_own_time() -> None:
    def mean_gap_s(steps_ahead: int) -> float:
        engine = EngineSettings(kind=TOY, slots=4, options="step_ms=20")
        scheduler, running = build(Settings(engine=engine))
        link = Link([[submit(number, 8, max_tokens=12) for number in range(4)]])
        instance = Instance(scheduler, running, link, lambda _: None, steps_ahead)
        while link.num_ended < 4:
            time.sleep(0.005)  # a loop that has much to do
            instance.turn()
        instance.turn()
        count, total_s = gaps_of(link)
        return total_s / count

    assert mean_gap_s(0) > 0.005
    assert any(mean_gap_s(1) < 0.003 for _ in range(10))  # one quiet try shows that the loop adds nothing


def test_slots_that_are_sent_anew_at_every_step_give_the_same_tokens() -> None:
    inbox = [[submit(number, 5 + 3 * number, max_tokens=10 + number)] for number in range(8)]
    assert serve(0, inbox, 8, ResendingScheduler) == serve(0, inbox, 8)


def test_gaps_of_an_instance_are_added_to_the_histogram_on_metrics() -> None:
    metrics = Metrics()
    gaps = metrics.histograms["gapless_token_gap_seconds"]
    instance = Histogram(GAP_BOUNDS_S)
    for gap_s in (0.0, 1e-5, 3e-5, 2.0):
        instance.observe(gap_s)
    gaps.add(tuple(instance.counts), instance.sum)
    gaps.add((), 0.0)
    values = {
        (name, labels): value
        for name, labels, value in metrics.samples()
        if name.startswith("gapless_token_gap")
    }
    assert values["gapless_token_gap_seconds_bucket", (("le", "1e-05"),)] == 2
    assert values["gapless_token_gap_seconds_bucket", (("le", "1.0"),)] == 3
    assert values["gapless_token_gap_seconds_bucket", (("le", "+Inf"),)] == 4
    assert values["gapless_token_gap_seconds_sum", ()] == pytest.approx(2.00004)
