"""The future-memory curve, what is believed of lengths, and the step-time
model, on values that can be worked out by hand.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.nouns.request import QUANTILE_LEVELS, LengthPrediction, ModelLimits, Request, Sampling
from python_backends.nouns.step import StepOutput
from python_backends.scheduling.lengths.belief import FEWEST, WEIGHTS, Array, Lengths, rest
from python_backends.scheduling.lengths.future_memory import Curve, in_use, lives, none_alive, points
from python_backends.scheduling.piece_time import chunk_kv_tokens
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.step_time import StepTime
from python_backends.settings import SchedulingSettings
from tests.support.examples import examples

LEVELS = len(QUANTILE_LEVELS)


def certain(tokens: list[int]) -> tuple[Array, Array]:
    """Rests that are known."""
    return np.array(tokens, np.float64)[:, None], np.ones((len(tokens), 1))


def curve(now: list[int], to_come: list[int], block_tokens: int = 1) -> Array:
    ahead, weights = certain(to_come)
    tokens = np.array(now, np.float64)
    alive, blocks = lives(np.zeros(len(now)), tokens, ahead, weights, points(ahead), block_tokens)
    return in_use(alive, blocks)[0].sum(axis=0)


def test_the_worked_value_of_past_future() -> None:
    """Now; then as the second, the third and the first end: 110 + 210 + 60, 150 + 100, 400."""
    assert curve([100, 200, 50], [300, 10, 50]).tolist() == [350, 380, 250, 400]


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 300)), min_size=1, max_size=30))
def test_the_peak_is_that_of_past_futures_formula(pairs: list[tuple[int, int]]) -> None:
    """max over i of rem_i · i + Σ_{j ≤ i} cur_j, the rests descending;
    the curve also looks at now, which is less.
    """
    descending = sorted(pairs, key=lambda pair: -pair[1])
    peaks = [
        count * descending[count - 1][1] + sum(now for now, _ in descending[:count])
        for count in range(1, len(pairs) + 1)
    ]
    now, to_come = zip(*pairs, strict=True)
    assert curve(list(now), list(to_come)).max() == max(peaks)


def test_blocks_are_whole_and_those_that_are_held_count_until_the_end() -> None:
    ahead, weights = certain([3])
    steps = np.array([0.0, 1, 2, 3, 4])
    mean, variance = in_use(*lives(np.array([4.0]), np.array([7.0]), ahead, weights, steps, block_tokens=4))
    assert mean.tolist() == [[4, 4, 4, 4, 0]]
    assert curve([7], [10], block_tokens=4).tolist() == [2, 5]
    assert not variance.any()


NOTHING = np.zeros(0, np.int32)


def seated(prompts: list[list[int]], answers: list[float], policy: str = "ours") -> SlotScheduler:
    """Prompts whose first one is computed before the others come; all run,
    and are known to have so many tokens to come.
    """
    clock = iter(range(1000))
    scheduler = SlotScheduler(
        ModelLimits(200, 100, 4, 100, 4),
        settings=SchedulingSettings(policy),
        clock=lambda: float(next(clock)),
    )
    for number, (prompt, tokens) in enumerate(zip(prompts, answers, strict=True)):
        scheduler.submit(Request(number, np.array(prompt, np.int32), Sampling(max_tokens=100)), NOTHING)
        scheduler.predict(number, certainly(tokens))
        plan = scheduler.plan()
        assert plan is not None
        count = int(plan.samples.sum())
        scheduler.apply(plan, StepOutput(plan.number, np.full(count, 1, np.int32), np.zeros(count, np.uint8)))
    return scheduler


def certainly(tokens: float) -> LengthPrediction:
    return LengthPrediction(tokens, np.full(LEVELS, tokens, np.float32))


def computed(scheduler: SlotScheduler, head: list[Sequence]) -> Curve:
    future = scheduler.outlook.future
    future.compute(head)
    return future._curve


def test_a_prefix_that_two_hold_counts_once_until_both_have_ended_and_growth_counts_in_full() -> None:
    """Blocks of 4. Both prompts begin with the same 8 tokens, 2 blocks, and go on with 3 of their own. After
    two steps 0 has 13 tokens in 6 blocks, 1 has 12 in 5: those for what was predicted first. Then 29 are to
    come of 0, 11 blocks in all, and 5 of 1.
    """
    scheduler = seated([[7] * 8 + [1] * 3, [7] * 8 + [2] * 3], [11.0, 6.0])
    assert scheduler.blocks.num_used == 2 + 4 + 3
    scheduler.predict(0, certainly(31.0))
    assert computed(scheduler, []).total()[0].tolist() == [9, 9, 11], "now, when 1 ends, when 0 ends"
    scheduler.cancel(1)
    assert computed(scheduler, []).total()[0].tolist() == [6, 11], "all that is left is held by 0 alone"


def test_the_peak_of_those_that_run_is_that_of_the_curve_and_none_is_computed_for_it() -> None:
    scheduler = seated([[1] * 9, [1] * 9, [2] * 4], [30, 12, 60])
    future = scheduler.outlook.future
    before = future.has_curve
    peak = future.peak_of_running()
    assert future.has_curve == before
    future.compute([])
    assert peak == future.peak_blocks
    assert scheduler.load().future_blocks == round(peak)


def test_one_that_waits_counts_what_it_would_add_and_keeps_what_it_shares() -> None:
    """It has 12 tokens, 8 of them in the 2 blocks that 0 and 1 hold, and 20 to
    come: 2 blocks of its own, 4, and 6 in the end.
    """
    scheduler = seated([[7] * 8 + [1] * 3, [7] * 8 + [2] * 3], [11.0, 11.0])
    waiting = Sequence(
        Request(9, np.array([7] * 8 + [5] * 4, np.int32), Sampling(max_tokens=20)), NOTHING, 9, 0
    )
    curve = computed(scheduler, [waiting])
    assert scheduler.outlook.future._steps.tolist() == [0, 9, 10, 20]
    assert curve.total()[0].tolist() == [10, 10, 6, 0]
    seating = scheduler._allocator.seating(waiting)
    assert seating.num_shared == 2
    more = curve.with_one_more(scheduler.outlook.future._life(waiting), seating.num_shared)
    assert more.total()[0].tolist() == [10 + 2, 10 + 4, 6 + 4, 2 + 6]


def test_blocks_that_are_kept_for_one_that_moves_here_are_in_use() -> None:
    scheduler = seated([[1] * 9], [30.0])
    future = scheduler.outlook.future
    before = future.peak_of_running()
    request = Request(9, np.array([5] * 40, np.int32), Sampling(max_tokens=20))
    coming = scheduler.new_sequence(request, np.array([3], np.int32), 1)
    scheduler.handover.reserve(coming)
    future.compute([])
    assert future.peak_of_running() == future.peak_blocks == before + len(coming.blocks)
    assert len(coming.blocks) > 10
    scheduler.handover.drop(coming)
    assert future.peak_blocks == before


def test_what_is_shared_is_there_as_long_as_anybody_may_be() -> None:
    assert none_alive(np.array([[1.0, 0.5, 0.5], [1.0, 0.5, 0.0]])).tolist() == [0, 0.25, 0.5]
    assert none_alive(np.zeros((0, 3))).tolist() == [1, 1, 1]


def evictions(num_shared: int, num_answers: int) -> int:
    """Of a run in which 8 always wait: answers of 150 tokens, known beforehand, after a common prefix that is
    kept already and 50 tokens of their own; 24 slots would take more than the 220 blocks of 8.
    """
    now_s = 0.0
    scheduler = SlotScheduler(
        ModelLimits(1024, 100, 24, 220, 8), 1024, SchedulingSettings("ours"), clock=lambda: now_s
    )
    random, made, num_ended = np.random.default_rng(0), Counter[int](), 0
    prefix = random.integers(0, 100, num_shared)
    requests = iter(range(10_000))

    def submit() -> None:
        number = next(requests)
        prompt = np.concatenate([prefix, random.integers(0, 100, 50)]).astype(np.int32)
        scheduler.submit(Request(number, prompt, Sampling(max_tokens=500)), NOTHING)
        scheduler.predict(number, certainly(150.0))

    submit()
    while num_ended < num_answers:
        while num_ended and scheduler.num_waiting < 8:
            submit()
        now_s += 0.02
        plan = scheduler.plan()
        if plan is None:
            continue
        numbers = scheduler.slots.request_ids[plan.slots[plan.samples]].tolist()
        made.update(numbers)
        finishes = np.array([made[number] >= 150 for number in numbers], np.uint8)
        num_ended += int(finishes.sum())
        scheduler.apply(plan, StepOutput(plan.number, np.full(len(numbers), 7, np.int32), finishes))
    return scheduler.num_evictions


def test_requests_with_one_long_prefix_run_together() -> None:
    """It takes 38 of 64 blocks, and each of the six takes 3 more: together they take 56."""
    now_s, most, made, num_ended = 0.0, 0, Counter[int](), 0
    scheduler = SlotScheduler(
        ModelLimits(2048, 100, 8, 64, 32), 2048, SchedulingSettings("ours"), clock=lambda: now_s
    )
    for number in range(6):
        prompt = np.array([7] * 1216 + [number] * 4, np.int32)
        scheduler.submit(Request(number, prompt, Sampling(max_tokens=60)), NOTHING)
        scheduler.predict(number, certainly(60.0))
    while num_ended < 6:
        now_s += 0.02
        plan = scheduler.plan()
        assert plan is not None
        numbers = scheduler.slots.request_ids[plan.slots[plan.samples]].tolist()
        made.update(numbers)
        finishes = np.array([made[number] >= 60 for number in numbers], np.uint8)
        num_ended += int(finishes.sum())
        scheduler.apply(plan, StepOutput(plan.number, np.full(len(numbers), 7, np.int32), finishes))
        most = max(most, scheduler.load().num_running)
    assert scheduler.num_evictions == 0
    assert most == 6


def test_a_common_prefix_causes_no_evictions() -> None:
    """With a prefix of 40 blocks as without one: whoever is predicted right is never evicted."""
    assert evictions(num_shared=0, num_answers=60) == 0
    assert evictions(num_shared=320, num_answers=60) == 0


def test_a_long_request_among_short_ones_is_evicted_a_few_times_at_most() -> None:
    """It takes 125 of 280 blocks, and 188 in the end. Short ones always wait, and write 220 tokens where 60
    were predicted: memory lacks again and again.
    """
    now_s, made, evicted, lengths = 0.0, Counter[int](), Counter[int](), {0: 2000}
    scheduler = SlotScheduler(
        ModelLimits(8192, 100, 16, 280, 32), 1024, SchedulingSettings("ours"), clock=lambda: now_s
    )
    random = np.random.default_rng(0)

    def submit(number: int, num_prompt_tokens: int, predicted: float) -> None:
        prompt = random.integers(0, 100, num_prompt_tokens).astype(np.int32)
        scheduler.submit(Request(number, prompt, Sampling(max_tokens=2100)), NOTHING)
        scheduler.predict(number, certainly(predicted))

    submit(0, 4000, 2000.0)
    while made[0] < lengths[0] and now_s < 400.0:
        while scheduler.num_waiting < 8:
            lengths[len(lengths)] = 220
            submit(len(lengths) - 1, 40, 60.0)
        now_s += 0.05
        plan = scheduler.plan()
        evicted.update(each.request_id for each in scheduler.take_evicted())
        if plan is None:
            continue
        numbers = scheduler.slots.request_ids[plan.slots[plan.samples]].tolist()
        made.update(numbers)
        finishes = np.array([made[number] >= lengths[number] for number in numbers], np.uint8)
        scheduler.apply(plan, StepOutput(plan.number, np.full(len(numbers), 7, np.int32), finishes))
    assert made[0] == lengths[0]
    assert evicted[0] <= 3 < evicted.total(), "others make way"


@pytest.mark.parametrize(("quantiles", "comes"), [([150] * LEVELS, False), ([4, 4, 30, 60, 150, 150], True)])
def test_one_is_passed_over_only_if_memory_is_nearly_certain_not_to_suffice(
    quantiles: list[int], comes: bool
) -> None:
    """Of 100 blocks of 4 two take 80 in the end. 150 tokens more take 39; that a third one has so many is
    less probable than not, and the peak one standard deviation above the mean is above all blocks.
    """
    scheduler = SlotScheduler(ModelLimits(200, 100, 4, 100, 4), settings=SchedulingSettings("ours"))
    prompt, most = np.array([1] * 9, np.int32), Sampling(max_tokens=150)
    for number in range(2):
        scheduler.submit(Request(number, prompt + number, most), NOTHING)
        scheduler.predict(number, certainly(150.0))
    scheduler.submit(Request(2, np.array([5] * 4, np.int32), most), NOTHING)
    scheduler.predict(2, LengthPrediction(float(np.mean(quantiles)), np.array(quantiles, np.float32)))
    assert scheduler.plan() is not None
    assert len(scheduler.take_started()) == 2 + comes
    assert comes == (scheduler.outlook.future.peak_blocks > 100)


def test_an_end_that_is_as_likely_as_not_leaves_half_of_the_blocks_and_their_spread() -> None:
    ahead, weights = np.array([[5.0, 20.0]]), np.array([[0.5, 0.5]])
    steps = np.array([5.0, 10.0, 20.0])
    mean, variance = in_use(*lives(np.zeros(1), np.array([90.0]), ahead, weights, steps, block_tokens=1))
    assert mean.tolist() == [[95, 50, 55]]
    assert np.sqrt(variance).tolist() == [[0, 50, 55]]


def test_the_curve_of_many_is_looked_at_in_few_points() -> None:
    ahead = np.random.default_rng(1).integers(1, 2000, (256, LEVELS)).astype(np.float64)
    assert len(points(ahead)) == 33
    assert points(ahead)[0] == 0
    assert points(ahead)[-1] == ahead.max()


def test_a_belief_is_conditioned_on_the_age() -> None:
    believed = np.array([[10.0, 20, 30, 40, 50, 60]] * 2)
    ahead, weights = rest(believed, np.array([0.0, 40.0]), np.array([500.0, 500.0]))
    assert ahead[0].tolist() == [10, 20, 30, 40, 50, 60]
    assert weights[0] == pytest.approx(WEIGHTS)
    assert weights[1] == pytest.approx([0, 0, 0, 0, *(WEIGHTS[4:] / WEIGHTS[4:].sum())])
    assert ahead[1, 4:].tolist() == [10, 20]


@given(st.floats(0, 3000), st.floats(1, 3000))
def test_who_is_older_than_was_believed_is_never_taken_to_be_at_its_end(made: float, most: float) -> None:
    ahead, weights = rest(np.full((1, LEVELS), 5.0), np.array([5.0 + made]), np.array([most]))
    assert (ahead >= 1).all()
    assert (ahead <= max(most, 1)).all()
    assert weights.sum() == pytest.approx(1)


def test_without_a_prediction_answers_are_as_they_were_here_lately_and_before_that_as_long_as_they_may() -> (
    None
):
    lengths, most = Lengths(), np.array([200.0, 30.0])
    assert lengths.believed([None, None], most).tolist() == [[200.0] * LEVELS, [30.0] * LEVELS]
    for number in range(101):
        lengths.ended(number)
    prior = lengths.believed([None, None], most)
    assert prior[0, 2] == pytest.approx(50, abs=8)
    assert (prior[1] <= 30).all()
    predicted = LengthPrediction(7.0, np.arange(4, 10).astype(np.float32))
    assert lengths.believed([predicted, None], most)[0].tolist() == [4, 5, 6, 7, 8, 9]


def test_sampled_lengths_are_some_that_ended_here_and_longer_than_what_is_there() -> None:
    lengths = Lengths()
    for _ in range(FEWEST):
        for number in (10, 20, 40):
            lengths.ended(number)
    made, most = np.array([0.0, 15.0, 20.0, 50.0] * 50), np.full(200, 300.0)
    drawn = lengths.sampled(made, most)[:, 0].reshape(50, 4)
    assert set(drawn[:, 0]) == {10, 20, 40}
    assert set(drawn[:, 1]) == {20, 40}
    assert set(drawn[:, 2]) == {40}
    assert set(drawn[:, 3]) == {300}


@examples
@given(
    st.lists(
        st.tuples(st.integers(0, 64), st.integers(0, 8000), st.sampled_from([0, 0, 17, 100, 256])),
        min_size=50,
        max_size=50,
    )
)
def test_the_step_time_model_finds_what_the_steps_are_made_of(loads: list[tuple[int, int, int]]) -> None:
    """Whatever loads it has seen, it knows what such steps take; from the second
    batch on one in twenty is interrupted for a second.
    """
    times, seen = StepTime(), np.array([(*load, 0) for load in loads], np.float64)
    honest = seen @ [1e-4, 5e-7, 2e-5, 0] + 0.004
    for batch in range(20):
        times.learn(seen, honest + ((np.arange(50) + batch) % 20 == 3) * float(batch > 1))
    found = np.array([times.seconds(*load) for load in loads])
    assert np.abs(found / honest - 1).max() < 0.1
    assert min(times.coefficients) >= 0


def test_a_token_of_a_chunk_costs_more_the_more_it_attends_to() -> None:
    times, random = StepTime(), np.random.default_rng(0)
    starts, lengths = random.integers(0, 4000, 400), random.integers(0, 3, 400) * 100
    loads = np.stack(
        [np.full(400, 8), np.full(400, 500), lengths, chunk_kv_tokens(starts, lengths)], axis=1
    ).astype(np.float64)
    times.learn(loads, 0.01 + 1e-4 * loads[:, 2] + 1e-7 * loads[:, 3])
    assert times.seconds(8, 500, 100, chunk_kv_tokens(0, 100)) == pytest.approx(0.0205, rel=0.01)
    assert times.seconds(8, 500, 100, chunk_kv_tokens(3000, 100)) == pytest.approx(0.0505, rel=0.01)
    assert times.seconds(8, 500) == pytest.approx(0.01, rel=0.01)


@given(
    st.just(0.0) | st.floats(1e-9, 1e-3),
    st.just(0.0) | st.floats(1e-12, 1e-6),
    st.integers(0, 100_000),
    st.floats(1e-3, 1.0),
)
def test_a_chunk_takes_the_time_that_it_is_cut_to(
    token_s: float, attended_s: float, start: int, seconds: float
) -> None:
    times = StepTime()
    times.coefficients = [0.01, 0.0, 0.0, token_s, attended_s]
    length = times.chunk_tokens(seconds, start)
    if math.isinf(length):
        assert token_s == attended_s == 0
    else:
        assert token_s * length + attended_s * chunk_kv_tokens(start, length) == pytest.approx(
            seconds, rel=1e-6
        )
    assert times.chunk_tokens(math.inf, start) == math.inf


def gpu_seconds(chunk: int, start: int) -> float:
    """Of a step beside 32 rows of 1,000 tokens, as a model of 8 billion parameters may take on a large GPU:
    products by 600 TFLOP/s, but no less than the weights take to be read; attention of the chunk by 250
    TFLOP/s; KV by 4.2 TB/s.
    """
    attention_s = 4 * chunk_kv_tokens(start, chunk) * 4096 * 32 / 250e12
    return max(0.0037, 2 * 7.5e9 * (32 + chunk) / 600e12) + 32_000 * 131_072 / 4.2e12 + float(attention_s)


class LongPrompts:
    """A step-time model that has served short prompts, and then gets chunks
    of long ones beside 32 rows, 150 ms a step.
    """

    def __init__(self, num_steps: int, lengths: list[int]) -> None:
        self.times, self._random = StepTime(), np.random.default_rng(1)
        for _ in range(num_steps):
            self.compute(int(self._random.choice(lengths)) if self._random.random() < 0.3 else 0, 0)

    def compute(self, chunk: int, start: int) -> None:
        load = [32, 32_000, chunk, chunk_kv_tokens(start, chunk)]
        noise = 1 + 0.02 * self._random.random()
        self.times.learn(np.array([load], np.float64), np.array([gpu_seconds(chunk, start) * noise]))

    def chunk(self, start: int) -> int:
        left_s = 0.150 - self.times.seconds(32, 32_000)
        return int(np.clip(self.times.chunk_tokens(left_s, start), 16, 4096))


@pytest.mark.parametrize("num_steps", [100, 2000])
@pytest.mark.parametrize(
    "lengths", [[512], list(range(20, 512)), list(range(20, 4096))], ids=["alike", "short", "various"]
)
@pytest.mark.parametrize("chunk", [0, 4096], ids=["chunks that it cuts", "chunks that are too long"])
def test_a_chunk_far_into_a_long_prompt_is_learned_from_and_keeps_the_bound(
    num_steps: int, lengths: list[int], chunk: int
) -> None:
    """However far such steps are off from all before: they are no interruptions."""
    served = LongPrompts(num_steps, lengths)
    for start in np.random.default_rng(0).integers(0, 120_000, 30).tolist():
        served.compute(chunk or served.chunk(start), start)
    for start in (0, 16_000, 64_000, 120_000):
        took_s = gpu_seconds(served.chunk(start), start)
        assert 0.1 < took_s < 0.150 * 1.25
    short_s = gpu_seconds(400, 0)
    assert served.times.seconds(32, 32_000, 400, chunk_kv_tokens(0, 400)) == pytest.approx(short_s, rel=0.3)


def test_an_interruption_of_a_usual_step_still_counts_little() -> None:
    served = LongPrompts(400, [100, 200, 300])
    before_s = served.times.seconds(32, 32_000, 200, chunk_kv_tokens(0, 200))
    served.times.learn(np.array([[32, 32_000, 200, chunk_kv_tokens(0, 200)]], np.float64), np.array([5.0]))
    assert served.times.seconds(32, 32_000, 200, chunk_kv_tokens(0, 200)) == pytest.approx(before_s, rel=0.1)


def test_what_steps_say_nothing_about_stays_as_it_was() -> None:
    """First prompts, then a thousand steps without any."""
    times, prompts, decodes = (
        StepTime(),
        np.array([[4, 200, 100, 0], [4, 200, 0, 0]], np.float64),
        np.array([[4, 200, 0, 0]], np.float64),
    )
    for _ in range(40):
        times.learn(prompts, np.array([0.03, 0.01]))
    for _ in range(1000):
        times.learn(decodes, np.array([0.01]))
    assert times.seconds(4, 200, 100) == pytest.approx(0.03, rel=0.02)
