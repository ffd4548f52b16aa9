"""Magnus's static batching: what a batch wastes, who shares one, which is
next, and what becomes of one without memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.magnus.static_batching.batches import (
    STATIC_POLICIES,
    Batch,
    BatchLimits,
    Member,
    WaitingBatches,
    first_come,
    highest_response_ratio,
    safe_size,
    wasted_accesses,
)
from benchmarks.magnus.static_batching.mode import Served, StaticMode
from python_backends.nouns.request import Finish, Request, Sampling
from python_backends.settings import EngineSettings, ModelSettings, Settings
from tests.pure.test_scheduling import model
from tests.support.scheduling import VOCAB
from tests.support.toy_answers import toy_answer
from tests.support.toy_engine import TOY, ToyEngine

__all__ = ["model"]  # a fixture

ROOMY = BatchLimits(num_blocks=1000, block_tokens=16, num_slots=64, fixed_size=7)
Lengths = list[tuple[int, int]]


def members(lengths: Lengths) -> list[Member]:
    """One of each (L, G), a second apart."""
    return [Member(number, prompt, answer, float(number)) for number, (prompt, answer) in enumerate(lengths)]


def waiting(policy: str, lengths: Lengths, limits: BatchLimits = ROOMY) -> WaitingBatches:
    batches = WaitingBatches(STATIC_POLICIES[policy], limits)
    for member in members(lengths):
        batches.add(member)
    return batches


def ids(batches: WaitingBatches | list[Batch]) -> list[list[int]]:
    listed = batches.batches if isinstance(batches, WaitingBatches) else batches
    return [[member.request_id for member in batch.members] for batch in listed]


def by_steps(shapes: NDArray[np.int64]) -> NDArray[np.float64]:
    """A second a step."""
    return shapes[:, 2].astype(np.float64)


# --- wasted memory accesses


@pytest.mark.parametrize(
    ("lengths", "waste"),
    [
        ([(1000, 1000)] * 3, 2000),
        ([(10, 10)], 20),
        ([(10, 10), (1000, 1000)], 1_501_355),
        ([(10, 10), (100, 100)], 15_005),
        ([(1000, 950), (1000, 1000)], 100_725),
        ([(1000, 976), (1000, 1000)], 49_700),
        ([(500, 100), (512, 108)], 6_744),
        ([(100, 20), (120, 25), (90, 30)], 1_995),
    ],
)
def test_a_batch_wastes_what_the_paper_says(lengths: Lengths, waste: int) -> None:
    assert wasted_accesses(members(lengths)) == waste


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=6))
def test_the_closed_form_is_the_sum_of_the_paper(lengths: Lengths) -> None:
    prompt, answer = max(pair[0] for pair in lengths), max(pair[1] for pair in lengths)
    sums = [g * (prompt - own) + sum(i + prompt for i in range(g, answer + 1)) for own, g in lengths]
    assert wasted_accesses(members(lengths)) == max(sums)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=30))
def test_a_waiting_batch_is_below_the_threshold_and_fits_in_memory(lengths: Lengths) -> None:
    limits = BatchLimits(num_blocks=40, block_tokens=4, num_slots=8, max_waste=900)
    for batch in waiting("abp", lengths, limits).batches:
        if len(batch.members) > 1:
            assert wasted_accesses(batch.members) < 900
            blocks = -(-(batch.prompt_tokens + batch.expected_tokens) // 4)
            assert blocks * len(batch.members) <= 40


# --- who shares a batch


def test_vanilla_batches_are_filled_in_order_of_arrival() -> None:
    assert ids(waiting("vs", [(10, 10), (1000, 1000)] * 8)) == [list(range(7)), list(range(7, 14)), [14, 15]]


def test_requests_of_like_lengths_share_a_batch() -> None:
    assert ids(waiting("abp", [(10, 10), (1000, 1000)] * 3)) == [[0, 2, 4], [1, 3, 5]]


def test_a_request_joins_the_batch_where_it_wastes_least() -> None:
    assert ids(waiting("abp", [(100, 100), (1000, 1000), (110, 110), (990, 990)])) == [[0, 2], [1, 3]]


def test_length_prediction_alone_keeps_the_fixed_size_and_adaptive_batching_does_not() -> None:
    assert ids(waiting("glp", [(10, 10)] * 9)) == [list(range(7)), [7, 8]]
    assert ids(waiting("abp", [(10, 10)] * 9)) == [list(range(9))]


def test_a_batch_that_would_not_fit_in_memory_is_not_joined() -> None:
    limits = BatchLimits(num_blocks=10, block_tokens=16, num_slots=64)
    assert ids(waiting("abp", [(10, 20)] * 6, limits)) == [list(range(5)), [5]]  # two blocks a row


def test_the_threshold_is_a_setting() -> None:
    limits = BatchLimits(num_blocks=1000, block_tokens=16, num_slots=64, max_waste=15_005)
    assert ids(waiting("abp", [(10, 10), (100, 100)], limits)) == [[0], [1]]
    limits = BatchLimits(num_blocks=1000, block_tokens=16, num_slots=64, max_waste=15_006)
    assert ids(waiting("abp", [(10, 10), (100, 100)], limits)) == [[0, 1]]


def test_the_size_that_is_always_safe_counts_the_longest_request_for_every_row() -> None:
    assert safe_size(num_blocks=112, block_tokens=32, max_total_tokens=512) == 7
    assert safe_size(num_blocks=112, block_tokens=32, max_total_tokens=513) == 6


# --- which batch is next


def test_the_greatest_response_ratio_goes_first() -> None:
    """Waited 100, 40 and 10 s; they take 100, 20 and 4."""
    batches = [
        Batch((Member(0, 10, 100, 0.0),)),
        Batch((Member(1, 10, 20, 60.0),)),
        Batch((Member(2, 10, 4, 90.0),)),
    ]
    assert highest_response_ratio(batches, 100.0, by_steps) == 2
    assert highest_response_ratio(batches[:2], 100.0, by_steps) == 1
    assert first_come(batches, 100.0, by_steps) == 0


def test_a_long_batch_gets_its_turn_however_many_short_ones_come() -> None:
    # everybody in a batch of one's own
    batches = waiting("magnus", [(10, 100)], BatchLimits(1000, 16, 64, max_waste=0))
    for now in range(1, 200):
        batches.add(Member(now, 10, 1, float(now)))
        if 0 in ids([batches.take(now + 1.0, by_steps)])[0]:
            break
    assert now + 1 == 100, "a short one has waited for a second and takes one: a ratio of 1"


def test_a_batch_has_waited_as_long_as_its_oldest_request() -> None:
    batch = Batch((Member(0, 1, 1, 5.0), Member(1, 1, 1, 3.0)))
    assert batch.arrival_s == 3.0


# --- out of memory


def test_seven_without_memory_become_four_and_three_that_have_waited_as_long() -> None:
    batches = waiting("magnus", [(10, 10)] * 7)
    batch = batches.take(10.0, by_steps)
    assert batches.split(batch)
    assert ids(batches) == [[0, 1, 2, 3], [4, 5, 6]]
    assert [half.arrival_s for half in batches.batches] == [0.0, 4.0]
    batches.add(Member(7, 10, 10, 10.0))
    assert ids(batches) == [[0, 1, 2, 3], [4, 5, 6], [7]], "nobody joins a half"


def test_one_alone_without_memory_is_not_split() -> None:
    batches = waiting("magnus", [(10, 10)])
    assert not batches.split(batches.take(10.0, by_steps))
    assert len(batches) == 0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def serve(
    model: Path, requests: list[Request], expected: int, blocks: int, policy: str = "magnus"
) -> list[Served]:
    """All of them on the toy engine with so many blocks of 4 tokens, until nobody waits."""
    engine = ToyEngine(
        Settings(ModelSettings(str(model), max_model_tokens=120), EngineSettings(TOY, 16, 4, blocks))
    )
    limits = BatchLimits(blocks, 4, 16, fixed_size=7)
    static = StaticMode(engine, STATIC_POLICIES[policy], limits, by_steps, Clock())
    for request in requests:
        static.submit(request, expected, 0.0)
    served = []
    while static.num_waiting:
        served.append(static.turn())
    return served


def toy_requests(count: int, max_tokens: int = 30) -> list[Request]:
    rng = np.random.default_rng(count)
    sampling = Sampling(max_tokens, stop_ids=(1, 2, 3))
    return [Request(number, rng.integers(0, VOCAB, 6).astype(np.int32), sampling) for number in range(count)]


def test_batches_that_run_out_of_memory_end_with_every_request_answered_once(model: Path) -> None:
    requests = toy_requests(7)
    served = serve(model, requests, expected=2, blocks=20)
    assert len(served[0].batch.members) == 7
    assert not served[0].answers, "predictions were too short: seven did not fit"
    assert {len(one.batch.members) for one in served[1:]} >= {4, 3}
    answers = {answer.request_id: answer for one in served for answer in one.answers}
    assert sum(len(one.answers) for one in served) == len(answers) == 7
    for request in requests:
        assert answers[request.request_id].tokens.tolist() == toy_answer(
            request.prompt, request.sampling, VOCAB
        )


def test_a_request_that_does_not_fit_by_itself_fails_alone(model: Path) -> None:
    requests = toy_requests(5, max_tokens=4)
    requests.append(Request(5, np.arange(40, dtype=np.int32), Sampling(max_tokens=30)))
    answers = {
        answer.request_id: answer for one in serve(model, requests, 4, blocks=12) for answer in one.answers
    }
    assert answers[5].finish is Finish.ERROR
    for request in requests[:5]:
        assert answers[request.request_id].tokens.tolist() == toy_answer(
            request.prompt, request.sampling, VOCAB
        )


@pytest.mark.parametrize("policy", STATIC_POLICIES)
def test_every_policy_gives_the_answers_of_an_undisturbed_run(model: Path, policy: str) -> None:
    requests = toy_requests(20)
    served = serve(model, requests, expected=8, blocks=100, policy=policy)
    answers = {answer.request_id: answer for one in served for answer in one.answers}
    for request in requests:
        assert answers[request.request_id].tokens.tolist() == toy_answer(
            request.prompt, request.sampling, VOCAB
        )


def test_rows_that_have_ended_are_computed_until_the_longest_ends(model: Path) -> None:
    requests = [Request(n, np.array([n], np.int32), Sampling(max_tokens=4 * n + 1)) for n in range(3)]
    (served,) = serve(model, requests, expected=9, blocks=100)
    assert [len(answer.tokens) for answer in served.answers] == [1, 5, 9]
    assert served.num_steps == 9
    assert served.num_tokens == 27
