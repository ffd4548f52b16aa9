"""Predicted lengths in the slot scheduler: order, admission, growth and who makes
way; whatever is predicted, texts stay the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.policies import setting_of
from python_backends.nouns.request import QUANTILE_LEVELS, LengthPrediction, Request
from python_backends.scheduling.lengths import predicted_order
from python_backends.scheduling.lengths.belief import FEWEST, Array
from python_backends.scheduling.lengths.future_memory import FutureMemory
from python_backends.scheduling.lengths.predicted_order import LOOKED_AT, PredictedOrder, Waits, least
from python_backends.scheduling.outlook import REFRESHED_S
from python_backends.scheduling.policies import POLICIES, policy_of
from python_backends.scheduling.policies.ours import slack_then_ratio
from python_backends.scheduling.policies.policy import longest_rest
from python_backends.scheduling.state.sequence import Sequence
from python_backends.settings import SchedulingSettings
from tests.support.clock import Clock
from tests.support.scheduling import Instance, answer, request, write_vocabulary


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("toy"))


def certain(tokens: float) -> LengthPrediction:
    return LengthPrediction(tokens, np.full(len(QUANTILE_LEVELS), tokens, np.float32))


def submit(instance: Instance, asks: list[Request], predicted: list[float]) -> None:
    for ask, tokens in zip(asks, predicted, strict=True):
        instance.submit(ask)
        instance.scheduler.predict(ask.request_id, certain(tokens))


def seats(instance: Instance) -> list[int]:
    return [sequence.request_id for sequence in instance.scheduler.slots.running()]


def turn(instance: Instance, seconds: float = REFRESHED_S) -> None:
    instance.now_s += seconds
    instance.turn()


@pytest.mark.parametrize("policy", [setting_of("sjf"), "ours"])
def test_the_shortest_predicted_answer_goes_first(model: Path, policy: str) -> None:
    instance = Instance(model, slots=1, policy=policy)
    asks = [request(number, [number], max_tokens=tokens) for number, tokens in enumerate([30, 20, 10])]
    submit(instance, asks, [30, 20, 10])
    instance.run()
    assert list(instance.finishes) == [2, 1, 0]
    assert all(instance.answers[ask.request_id] == answer(ask) for ask in asks)


def test_the_highest_response_ratio_goes_next(model: Path) -> None:
    """The short one overtakes the long one only once it has waited for its own part."""
    instance = Instance(model, slots=1, policy="hrrn")
    submit(instance, [request(0, [1], max_tokens=50)], [50])
    turn(instance)
    submit(instance, [request(1, [2], max_tokens=60)], [60])
    turn(instance, 1.0)
    submit(instance, [request(2, [3], max_tokens=6), request(3, [4], max_tokens=59)], [6, 59])
    while 0 not in instance.finishes:
        turn(instance)
    instance.run()
    assert list(instance.finishes) == [0, 2, 1, 3]


def test_sjf_takes_first_who_was_passed_over_for_200_steps(model: Path) -> None:
    instance = Instance(model, slots=1, policy=setting_of("sjf"))
    submit(instance, [request(0, [1], max_tokens=2)], [2])
    turn(instance)
    submit(instance, [request(1, [2], max_tokens=40)], [40])
    number = 2
    while 1 not in seats(instance):
        submit(instance, [request(number, [3], max_tokens=2)], [2])
        turn(instance)
        number += 1
    assert 200 <= instance.scheduler.num_steps <= 205


def test_a_prediction_that_comes_late_changes_the_order_at_the_next_look(model: Path) -> None:
    instance = Instance(model, slots=1, policy="ours")
    for number, tokens in enumerate([30, 20, 9]):
        instance.submit(request(number, [number], max_tokens=tokens))
    turn(instance)
    first = seats(instance)
    assert first == [2], "without a prediction and any history it is max_tokens that counts"
    instance.scheduler.predict(0, certain(3))
    instance.now_s += REFRESHED_S
    instance.run()
    assert list(instance.finishes) == [2, 0, 1]


@pytest.mark.parametrize("quantiles", [[np.nan] * 6, [1, 2, np.inf, 4, 5, 6], [5.0]])
def test_a_prediction_that_says_nothing_is_none(model: Path, quantiles: list[float]) -> None:
    instance = Instance(model, slots=1, policy="ours")
    asks = [request(0, [1], max_tokens=9), request(1, [2], max_tokens=12)]
    submit(instance, asks, [9, 12])
    instance.scheduler.predict(1, LengthPrediction(1.0, np.array(quantiles, np.float32)))
    instance.run()
    assert list(instance.finishes) == [0, 1]


def test_before_anything_is_known_max_tokens_is_reserved(model: Path) -> None:
    """30 blocks of 4: 2 × (5 + 40) tokens fit, as for fcfs."""
    instance = Instance(model, slots=4, blocks=30, policy="ours")
    for number in range(4):
        instance.submit(request(number, [number + 1] * 5, max_tokens=40))
    turn(instance)
    assert seats(instance) == [0, 1]
    assert instance.scheduler.peak_blocks == 24


def test_answers_that_ended_here_tell_of_those_to_come(model: Path) -> None:
    """Without any prediction: after some that were short, four are
    admitted where max_tokens has room for two.
    """
    instance = Instance(model, slots=4, blocks=30, policy="ours")
    for number in range(FEWEST + 4):
        stop = answer(request(number, [number] * 5))[3]
        instance.submit(request(number, [number] * 5, stop_ids=(stop,)))
    instance.run()
    for number in range(100, 104):
        instance.submit(request(number, [number - 90] * 5, max_tokens=40))
    turn(instance)
    assert len(seats(instance)) == 4
    assert instance.scheduler.peak_blocks < 28


def test_with_lengths_that_are_known_memory_is_full_and_nobody_is_evicted(model: Path) -> None:
    instance = Instance(model, slots=8, blocks=40, policy="ours")
    random = np.random.default_rng(3)
    asks = [
        request(number, [number] * 6, max_tokens=int(tokens))
        for number, tokens in enumerate(random.integers(2, 60, 60))
    ]
    submit(instance, asks, [ask.sampling.max_tokens for ask in asks])
    most = 0
    while instance.turn():
        instance.now_s += REFRESHED_S
        most = max(most, instance.scheduler.blocks.num_used)
    assert instance.scheduler.num_evictions == 0
    assert 0.8 * 40 < most <= 0.95 * 40 + 1, (
        "one more than the bound, because the curve is looked at in a few points"
    )
    assert all(instance.answers[ask.request_id] == answer(ask) for ask in asks)


def test_when_predictions_were_too_short_the_one_with_the_longest_rest_makes_way_and_texts_are_the_same(
    model: Path,
) -> None:
    instance = Instance(model, slots=4, blocks=26, policy="ours")
    asks = [request(number, [number] * 5, max_tokens=60) for number in range(4)]
    submit(instance, asks, [5, 7, 6, 5])
    evicted = []
    while not instance.scheduler.is_idle:
        running = instance.scheduler.slots.running()
        rests = instance.scheduler.outlook.future.rest_tokens(running)
        keys = {
            sequence.request_id: (sequence.num_evictions, -rest)
            for sequence, rest in zip(running, rests, strict=True)
        }
        turn(instance, 0.01)
        gone = [
            number for number in keys if number not in seats(instance) and number not in instance.finishes
        ]
        evicted += [keys[number] == min(keys.values()) for number in gone[:1]]
    assert evicted
    assert all(evicted)
    assert all(instance.answers[ask.request_id] == answer(ask) for ask in asks)


def test_who_was_evicted_makes_way_after_those_that_were_not() -> None:
    sequences = [Sequence(request(number, [number]), np.zeros(0, np.int32), number, 0) for number in range(4)]
    for sequence, num_evictions in zip(sequences, (1, 0, 0, 2), strict=True):
        sequence.num_evictions = num_evictions
    assert longest_rest(sequences, lambda running: np.array([900, 50, 60, 990])) is sequences[2]


def test_who_has_no_room_is_passed_by_until_it_is_overdue(model: Path) -> None:
    """One runs and holds most of the memory; the long one that waits has no
    room beside it, short ones do for ten seconds.
    """
    instance = Instance(model, slots=3, blocks=26, policy="ours")
    submit(instance, [request(0, [1] * 40, max_tokens=40)], [40])
    turn(instance)
    submit(instance, [request(1, [2] * 40, max_tokens=20)], [20])
    passing = 2
    while instance.now_s < 10.5:
        submit(instance, [request(passing, [3], max_tokens=2)], [2])
        turn(instance, 0.5)
        passing += 1
    served = set(instance.finishes) | set(seats(instance))
    assert {2, 3, 4} <= served
    assert 1 not in served
    submit(instance, [request(passing, [3], max_tokens=2)], [2])
    turn(instance, 0.5)
    assert passing not in seats(instance), "nobody goes before the overdue one"
    instance.run()
    assert instance.answers[1] == answer(request(1, [2] * 40, max_tokens=20))


def test_past_future_stops_at_the_first_without_room_and_takes_no_notice_of_predictions(model: Path) -> None:
    instance = Instance(model, slots=4, blocks=26, policy="past_future")
    submit(
        instance,
        [
            request(0, [1] * 5, max_tokens=60),
            request(1, [2] * 5, max_tokens=60),
            request(2, [3], max_tokens=2),
        ],
        [2, 2, 2],
    )
    turn(instance)
    assert seats(instance) == [0]
    instance.run()
    assert list(instance.finishes) == [0, 2, 1]


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 9)), min_size=1, max_size=60), st.integers(1, 60)
)
def test_the_head_is_that_of_a_full_sort(waiting: list[tuple[int, int]], count: int) -> None:
    priority, rank = (np.array(column, np.float64) for column in zip(*waiting, strict=True))
    arrival = np.arange(len(waiting), 0.0, -1.0)
    places = least(rank, priority, arrival, min(count, len(waiting))).tolist()
    assert [(-priority[place], rank[place]) for place in places] == sorted(zip(-priority, rank, strict=True))[
        : len(places)
    ]
    assert sorted(places, key=lambda place: (-priority[place], rank[place], arrival[place])) == places
    assert len(set(places)) == min(count, len(waiting))


def test_the_order_is_made_for_the_head_and_who_comes_later_stands_behind_it() -> None:
    order = PredictedOrder(
        lambda waits: waits.service_s,
        SchedulingSettings(),
        lambda sequences: np.zeros(len(sequences)),
        lambda: 5.0,
    )
    for number in range(20):
        order.add(waiting(number, predicted=20 - number))
    assert not order.is_used_up
    order.sort(4, np.inf, lambda prompts, tokens: (prompts, tokens))
    order.add(waiting(50, predicted=1))
    assert [sequence.request_id for sequence in order] == [19, 18, 17, 16, 50]
    for sequence in list(order):
        order.remove(sequence)
    assert order.is_used_up
    order.sort(2, np.inf, lambda prompts, tokens: (prompts, tokens))
    assert [sequence.request_id for sequence in order] == [15, 14]
    order.check_integrity()


def test_a_crowd_is_put_into_order_part_by_part() -> None:
    """Nobody looks at all of 10,000 at once, and in the end the first are found, wherever they stand."""
    seen: list[int] = []

    def rank(waits: Waits) -> Array:
        seen.append(len(waits.waited_s))
        return waits.service_s

    order = PredictedOrder(
        rank, SchedulingSettings(), lambda sequences: np.zeros(len(sequences)), lambda: 5.0
    )
    predicted = np.random.default_rng(0).permutation(10_000) / 200  # tokens
    crowd = [waiting(number, predicted=predicted[number]) for number in range(10_000)]
    for sequence in crowd:
        order.add(sequence)
    for sequence in crowd[::7]:
        order.remove(sequence)
    stay = [number for number in range(10_000) if number % 7]
    while sum(seen) < 2 * len(stay):
        order.sort(20, np.inf, lambda prompts, tokens: (prompts, tokens))
    first = sorted(stay, key=lambda number: predicted[number])[:20]
    assert [sequence.request_id for sequence in order] == first
    assert max(seen) <= 2 * LOOKED_AT
    for sequence in list(order):
        order.remove(sequence)
    assert order.is_used_up
    order.sort(20, np.inf, lambda prompts, tokens: (prompts, tokens))
    assert len(list(order)) == 20
    order.check_integrity()


def test_in_a_crowd_too_who_has_been_passed_over_for_too_long_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(5.0)
    monkeypatch.setattr(predicted_order, "PATIENCE", 0.25)
    settings = SchedulingSettings(policy="ours", ttft_s=1.0)
    order = PredictedOrder(slack_then_ratio, settings, lambda sequences: np.full(len(sequences), 30.0), clock)
    for number in range(3 * LOOKED_AT):
        long = waiting(number, predicted=90 - number / LOOKED_AT * 25)
        long.arrived_s = number / 3 / LOOKED_AT
        order.add(long)

    def head() -> list[int]:
        order.sort(3, 25.0, lambda prompts, tokens: (prompts / 1000, tokens / 10))
        return [sequence.request_id for sequence in order]

    order.seated(waiting(90_000, predicted=1))  # arrived at 4.0
    assert [head() for _ in range(3)][-1] != [0, 1, 2]
    for clock.now_s in (6.0, 7.0, 8.0, 9.0):
        heads = head()
    assert heads == [0, 1, 2], "passed over 4 s ago, and the longest wait is 9 s"


def test_the_ranks_see_waiting_service_and_slack() -> None:
    seen: list[Waits] = []

    def rank(waits: Waits) -> Array:
        seen.append(waits)
        return waits.service_s

    order = PredictedOrder(
        rank, SchedulingSettings(ttft_s=2.0), lambda sequences: np.full(len(sequences), 30.0), lambda: 5.0
    )
    order.add(waiting(0, predicted=7))
    order.add(waiting(1, predicted=None))
    order.add(waiting(2, predicted=60, delivered=10))
    order.sort(3, 25.0, lambda prompts, tokens: (prompts / 10, tokens))
    assert seen[0].waited_s.tolist() == [1, 1, 1]
    assert seen[0].service_s.tolist() == [7.1, 25.1, 31.1]
    assert seen[0].slack_s.tolist() == pytest.approx([0.9, 0.9, np.inf])


def test_equals_are_passed_over_for_a_share_of_the_longest_wait_and_then_go_in_order_of_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0 is long; 3, which came later and is short, goes before it."""
    clock = Clock(5.0)
    monkeypatch.setattr(predicted_order, "PATIENCE", 0.5)
    settings = SchedulingSettings(policy="ours", ttft_s=1.0)
    order = PredictedOrder(slack_then_ratio, settings, lambda sequences: np.full(len(sequences), 30.0), clock)

    def head(slots_are_scarce: bool = True) -> list[int]:
        order.sort(9, 25.0, lambda prompts, tokens: (prompts / 1000, tokens / 10), slots_are_scarce)
        return [sequence.request_id for sequence in order]

    late = waiting(3, predicted=1)
    late.arrived_s = 4.5
    for sequence in (waiting(0, predicted=90), waiting(4, predicted=1), late):
        order.add(sequence)
    assert head() == [3, 4, 0]
    order.remove(late)
    order.seated(late)
    assert head() == [4, 0], "passed over just now"
    clock.now_s = 6.6
    newer = waiting(5, predicted=2)
    newer.arrived_s = 6.5
    order.add(newer)
    assert head() == [0, 4, 5], "for 1.6 s, and the longest wait is 2.6 s"
    assert head(slots_are_scarce=False) == [5, 4, 0], "what is scarce is memory"


def test_who_makes_room_for_a_larger_priority_is_not_passed_over() -> None:
    clock = Clock(5.0)
    order = PredictedOrder(
        slack_then_ratio, SchedulingSettings(), lambda sequences: np.zeros(len(sequences)), clock
    )
    urgent = Sequence(request(1, [1], priority=7), np.zeros(0, np.int32), 1, 0, arrived_s=4.5)
    order.add(waiting(0, predicted=90))
    order.add(urgent)
    order.remove(urgent)
    order.seated(urgent)
    clock.now_s = 9.0
    newer = waiting(2, predicted=1)
    newer.arrived_s = 8.9
    order.add(newer)
    order.sort(9, 25.0, lambda prompts, tokens: (prompts / 1000, tokens / 10))
    assert [sequence.request_id for sequence in order] == [2, 0]


def test_while_slots_and_memory_suffice_nothing_is_foreseen(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five requests in a row on four slots, never more than four at once:
    as cheap as fcfs. A crowd is another thing.
    """
    computed: list[int] = []
    compute = FutureMemory.compute
    monkeypatch.setattr(
        FutureMemory, "compute", lambda self, used, *rest: computed.append(used) or compute(self, used, *rest)
    )
    instance = Instance(model, slots=4, blocks=64, policy="ours")
    for number in range(5):
        instance.submit(request(number, [number + 1] * 5, max_tokens=8))
        for _ in range(4):
            turn(instance)
        instance.scheduler.load()
    instance.run()
    assert not computed
    for number in range(10, 16):
        instance.submit(request(number, [number] * 5, max_tokens=8))
    for _ in range(3):
        turn(instance)
    assert computed
    instance.run()
    instance.scheduler.check_integrity()


def waiting(number: int, predicted: float | None, delivered: int = 0) -> Sequence:
    sequence = Sequence(
        request(number, [1], max_tokens=100), np.ones(delivered, np.int32), number, 0, arrived_s=4.0
    )
    sequence.prediction = None if predicted is None else certain(predicted)
    return sequence


def test_lengths_are_predicted_for_those_policies_that_go_by_them() -> None:
    for name in [*POLICIES, setting_of("sjf")]:
        chosen = SchedulingSettings(name)
        assert chosen.uses_lengths == (policy_of(chosen).rank is not None)
