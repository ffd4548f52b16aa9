"""Whose turn it is among the waiting, against a list that is sorted
anew each time; and what a long queue costs.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.host_time.loop import ChangingQueue, WaitingStreams
from python_backends.nouns.request import BASE, AdapterVersion, Request, Sampling
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.waiting import WaitingList
from tests.support.clock import Clock
from tests.support.examples import examples

BOUND_S = 10.0
ADAPTERS = (BASE, AdapterVersion("a", "1", "0a"), AdapterVersion("b", "1", "0b"))


def sequence(arrival: int, priority: int = 0, adapter: AdapterVersion = BASE) -> Sequence:
    request = Request(arrival, np.zeros(1, np.int32), Sampling(1), priority=priority, adapter=adapter)
    return Sequence(request, np.zeros(0, np.int32), arrival, 0)


class WaitingStates(RuleBasedStateMachine):
    """Arrivals, departures, seats and evictions at random times. The model keeps plain lists, and sorts."""

    @initialize(by_priority=st.booleans())
    def begin(self, by_priority: bool) -> None:
        self.now_s = 0.0
        self.by_priority = by_priority
        self.waiting = WaitingList(BOUND_S, lambda: self.now_s, by_priority)
        self.here: list[Sequence] = []
        self.since: dict[int, float] = {}  # by arrival
        self.seated: list[Sequence] = []
        # (when, arrival of who was seated before somebody who came earlier)
        self.passes: list[tuple[float, int]] = []
        self.arrivals = 0

    @rule(priority=st.integers(-2, 2), adapter=st.sampled_from(ADAPTERS))
    def arrive(self, priority: int, adapter: AdapterVersion) -> None:
        self.enter(sequence(self.arrivals, priority, adapter))
        self.arrivals += 1

    def enter(self, sequence: Sequence) -> None:
        self.here.append(sequence)
        self.since[int(sequence.arrival)] = self.now_s
        self.waiting.add(sequence)

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        gone = data.draw(st.sampled_from(self.here))
        self.here.remove(gone)
        self.waiting.remove(gone)

    @precondition(lambda self: self.here)
    @rule(skipped=st.integers(0, 2))
    def seat(self, skipped: int) -> None:
        """A policy may skip the head, as one that has no room for it."""
        order = self.order()
        chosen = order[min(skipped, len(order) - 1)]
        self.here.remove(chosen)
        self.seated.append(chosen)
        self.waiting.seat(chosen)
        if any(left.arrival < chosen.arrival for left in self.here):
            self.passes.append((self.now_s, chosen.arrival))

    @precondition(lambda self: self.seated)
    @rule(data=st.data())
    def evict(self, data: Any) -> None:
        """Back to its old place."""
        back = data.draw(st.sampled_from(self.seated))
        self.seated.remove(back)
        self.enter(back)

    @invariant()
    def the_order_is_that_of_the_model(self) -> None:
        assert [waiting.arrival for waiting in self.waiting.in_order()] == [
            waiting.arrival for waiting in self.order()
        ]
        assert len(self.waiting) == len(self.here)
        assert [waiting.arrival for waiting in self.waiting] == sorted(each.arrival for each in self.here)
        self.waiting.check_integrity()

    @rule(closed=st.sets(st.sampled_from(ADAPTERS[1:])))
    def of_those_that_can_not_go_the_first_is_there(self, closed: set[AdapterVersion]) -> None:
        """And one more at most, however many wait."""
        digests, order = {adapter.digest for adapter in closed}, self.order()
        turns = list(self.waiting.in_order(lambda digest: digest not in digests))
        places = [order.index(each) for each in turns]
        assert places == sorted(places)
        for adapter in ADAPTERS:
            all_of_it, there = (
                [each for each in some if each.request.adapter == adapter] for some in (order, turns)
            )
            assert there == all_of_it or (adapter in closed and there[0] is all_of_it[0] and len(there) <= 2)

    def order(self) -> list[Sequence]:
        return sorted(self.here, key=self.rank if self.by_priority else lambda waiting: waiting.arrival)

    def rank(self, waiting: Sequence) -> tuple[int, int, int]:
        is_old = self.since[int(waiting.arrival)] + BOUND_S <= self.now_s
        passes = [arrival for when, arrival in self.passes if when + BOUND_S <= self.now_s]
        if is_old and max(passes, default=0) > waiting.arrival:
            return 0, 0, waiting.arrival
        return 1, -waiting.request.priority, waiting.arrival


TestWaitingStates = WaitingStates.TestCase
TestWaitingStates.settings = settings(examples, stateful_step_count=50)


def test_larger_priorities_go_first_and_within_one_who_came_first() -> None:
    waiting = WaitingList(BOUND_S, lambda: 0.0)
    for arrival, priority in enumerate([0, -1, 5, 0, 5]):
        waiting.add(sequence(arrival, priority))
    assert [each.arrival for each in waiting.in_order()] == [2, 4, 0, 3, 1]


def test_who_was_passed_over_for_too_long_goes_first() -> None:
    clock = Clock(0.0)
    waiting = WaitingList(BOUND_S, clock)
    first, urgent = sequence(0), sequence(1, priority=9)
    waiting.add(first)
    clock.now_s = 100.0
    waiting.add(urgent)
    assert next(waiting.in_order()) is urgent, "long waiting alone is no reason: nobody was put before it"
    waiting.seat(urgent)
    for arrival in range(2, 30):
        waiting.add(sequence(arrival, priority=9))
        clock.now_s += 0.5
        chosen = next(waiting.in_order())
        waiting.seat(chosen)
        if chosen is first:
            break
    assert clock.now_s == 110.0


def test_who_comes_back_or_from_elsewhere_is_not_overdue_before_it_has_waited_here() -> None:
    """Somebody was passed over long ago, and has gone."""
    clock = Clock(0.0)
    waiting = WaitingList(BOUND_S, clock)
    passed, later = sequence(1), sequence(2)
    waiting.add(passed)
    waiting.add(later)
    waiting.seat(later)
    clock.now_s = 100.0
    waiting.seat(passed)
    evicted, urgent = sequence(0, priority=-1), sequence(3, priority=1)
    waiting.add(evicted)
    waiting.add(urgent)
    for _ in range(19):
        clock.now_s += 0.5
        assert next(waiting.in_order()) is urgent
    clock.now_s += 0.5
    assert next(waiting.in_order()) is evicted


def test_where_none_becomes_overdue_nothing_is_kept_of_who_was_passed_over() -> None:
    waiting = WaitingList(BOUND_S, lambda: 0.0, by_priority=False)
    waiting.add(sequence(0))
    for arrival in range(1, 5):
        waiting.add(later := sequence(arrival))
        waiting.seat(later)
    assert not waiting._passes


def test_to_ask_what_the_head_needs_changes_nothing() -> None:
    """Only a look at the turns notes which are overdue."""
    clock = Clock(0.0)
    waiting = WaitingList(BOUND_S, clock)
    first, urgent = sequence(0), sequence(1, priority=9)
    waiting.add(first)
    waiting.add(urgent)
    waiting.seat(urgent)
    clock.now_s = 2 * BOUND_S
    assert waiting.num_head_blocks == 1
    assert not waiting.is_overdue(first)
    assert next(waiting.in_order()) is first
    assert waiting.is_overdue(first)


def test_a_step_costs_the_same_with_a_hundred_and_with_fifty_thousand_waiting() -> None:
    """With a plain list it cost the slot scheduler six times as much, and the
    stream table that looked at everybody 600 times.
    """
    for kind in (ChangingQueue, WaitingStreams):
        few, many = (statistics.median(each.turn() for _ in range(40)) for each in (kind(100), kind(50_000)))
        assert many < 2 * few + 100e-6, f"{kind.__name__}: {many * 1e6:.0f} us instead of {few * 1e6:.0f} us"
