"""Work that may wait gets what serving leaves: those who wait for tokens do not notice it."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.instance.spare_time import GOAL, MOST_LATE_S, SpareTime, SpareWork
from python_backends.nouns.request import Ids
from python_backends.nouns.step import StepPlan
from python_backends.scheduling.step_time import StepTime
from tests.support.clock import Clock


class Work(SpareWork):
    """Notes what time it is given, and uses `takes_s` of it."""

    has_work = True

    def __init__(self, clock: Clock, takes_s: float = 0.0) -> None:
        self._clock, self._takes_s = clock, takes_s
        self.given_s: list[float] = []

    def work(self, slack_s: float, plan: StepPlan | None) -> bool:
        self.given_s.append(slack_s)
        self._clock.now_s += self._takes_s
        return self._takes_s > 0


class OneWork:
    """A loop with one kind of work and a turned clock; 45 ms a token, or 25 ms while nobody waits."""

    def __init__(self) -> None:
        self._clock = Clock(0.0)
        self._work = Work(self._clock)
        self._spare = SpareTime([self._work], 0.045, 0.025, self._clock)

    def given_s(self, plan: StepPlan | None, at_s: float = 0.0, is_waited_for: bool = False) -> float:
        """Before a step that begins then."""
        self._clock.now_s = at_s
        self._spare.use(plan, step_time(), is_waited_for)
        return self._work.given_s[-1]


def zeros(count: int) -> Ids:
    return np.zeros(count, np.int32)


def decodes(rows: int, kv_tokens: int, prompt: int = 0) -> StepPlan:
    """A step in which `rows` decode, each with its part of the KV tokens; with a chunk of `prompt` tokens."""
    chunks = int(prompt > 0)
    starts = np.array([*[kv_tokens // max(1, rows) - 1] * rows, *[0] * chunks], np.int32)
    lengths = np.array([*[1] * rows, *[prompt] * chunks], np.int32)
    slots = np.arange(rows + chunks, dtype=np.int32)
    samples = np.ones(rows + chunks, np.bool_)
    return StepPlan(0, (), slots, zeros(rows + chunks), starts, lengths, rows, samples, zeros(prompt))


def step_time() -> StepTime:
    times = StepTime()
    times.coefficients = [0.010, 0.0005, 0.000001, 0.001, 0.0]
    return times


SIXTEEN = decodes(16, 4096)  # a step of 22.096 ms
LEFT_S = GOAL * 0.045 - 0.022096


def test_a_step_and_the_work_before_it_take_no_longer_than_the_time_per_token() -> None:
    assert OneWork().given_s(SIXTEEN) == pytest.approx(LEFT_S)
    assert OneWork().given_s(decodes(64, 32768)) == 0


def test_an_idle_server_works_for_as_long_as_a_new_request_may_wait() -> None:
    assert OneWork().given_s(None) == 0.025


def test_prompts_and_requests_that_wait_go_first() -> None:
    assert OneWork().given_s(decodes(2, 20, prompt=5)) == 0
    assert OneWork().given_s(decodes(2, 20), is_waited_for=True) == 0
    assert OneWork().given_s(None, is_waited_for=True) == 0.025


def test_what_a_step_with_a_prompt_took_too_long_is_caught_up_before_work_goes_on() -> None:
    loop, given_s = OneWork(), []
    goal_s = GOAL * 0.045
    # in time; 0.010 too long; 0.006 of it is caught up
    for at_s in (0.0, 0.040, 0.040 + goal_s + 0.010, 0.040 + 2 * goal_s + 0.004):
        given_s.append(loop.given_s(SIXTEEN, at_s))
    assert given_s == pytest.approx([LEFT_S, LEFT_S, LEFT_S - 0.010, LEFT_S - 0.004])


def test_where_no_request_decodes_none_is_late() -> None:
    loop, few = OneWork(), decodes(2, 20)
    in_time_s = loop.given_s(few)
    loop = OneWork()
    loop.given_s(decodes(0, 1, prompt=100), 0.0)
    assert loop.given_s(few, 1.0) == in_time_s, "its step had only a prompt"
    assert loop.given_s(few, 2.0) == 0
    loop.given_s(None, 2.1)
    assert loop.given_s(few, 9.0) == in_time_s


def test_a_long_time_between_two_steps_is_not_caught_up() -> None:
    """The process stood still, or there was no work."""
    loop, few, goal_s = OneWork(), decodes(2, 20), GOAL * 0.045
    in_time_s = loop.given_s(few, 0.0)
    now_s, num_steps = 3600.0, 0
    while loop.given_s(few, now_s) < in_time_s:
        num_steps, now_s = num_steps + 1, now_s + goal_s - 0.01
    assert num_steps == pytest.approx(MOST_LATE_S / 0.01, abs=1)


def test_one_kind_of_work_has_what_those_before_it_leave() -> None:
    clock = Clock(0.0)
    first, second = Work(clock, 0.004), Work(clock, 0.002)
    spare = SpareTime([first, second], 0.045, 0.025, clock)
    assert spare.use(SIXTEEN, step_time(), False)
    assert (first.given_s, second.given_s) == (pytest.approx([LEFT_S]), pytest.approx([LEFT_S - 0.004]))


def test_an_idle_loop_waits_no_longer_than_any_work_that_there_is() -> None:
    class Patient(Work):
        patience_s = 0.005

    class Done(Work):
        has_work = False

    clock = Clock(0.0)
    assert SpareTime([Patient(clock), Done(clock)]).patience_s == 0.005
    assert SpareTime([Patient(clock), Work(clock)]).patience_s == 0
    assert not SpareTime([Done(clock)]).has_work
    assert not SpareTime().has_work
