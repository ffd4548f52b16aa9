"""Greedy tokens are those of transformers' generate in float32, whatever happens around a request."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.nouns.request import Finish, Request, Sampling
from python_backends.scheduling.state.sequence import Sequence
from tests.support.tiny_models import (
    BFLOAT16_REGRET,
    VOCABULARY,
    Serving,
    TinyModel,
    generate,
    random_requests,
)


def test_answers_have_many_different_tokens(each: TinyModel) -> None:
    """A model that repeats one token would agree with anything."""
    for request in random_requests(6):
        tokens, _ = each.reference(request.prompt, 50)
        assert len(set(tokens)) >= 20


@pytest.mark.parametrize(("slots", "token_budget"), [(3, 5), (8, 256)])
def test_answers_do_not_depend_on_slots_and_chunk_size(
    each: TinyModel, slots: int, token_budget: int
) -> None:
    requests = random_requests(10)
    answers = Serving(each.engine(slots=slots), token_budget).run(requests)
    for request in requests:
        each.check(request, answers[request.request_id])


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_answers_do_not_depend_on_the_number_of_slots(one: TinyModel, slots: int) -> None:
    requests = random_requests(10)
    answers = Serving(one.engine(slots=slots)).run(requests)
    for request in requests:
        one.check(request, answers[request.request_id])


@pytest.mark.parametrize("block_tokens", [1, 5, 16, 100])
def test_answers_do_not_depend_on_the_block_size(one: TinyModel, block_tokens: int) -> None:
    requests = random_requests(6, seed=1)
    answers = Serving(one.engine(block_tokens=block_tokens)).run(requests)
    for request in requests:
        one.check(request, answers[request.request_id])


def test_requests_that_come_while_others_decode_get_their_own_answers(each: TinyModel) -> None:
    requests = random_requests(12, seed=2)
    serving = Serving(each.engine())
    for request in requests:
        serving.submit(request)
        for _ in range(request.request_id % 5):
            serving.step()
    answers = serving.run()
    for request in requests:
        each.check(request, answers[request.request_id])


def test_shared_prefix_blocks_give_the_same_answers(each: TinyModel) -> None:
    """Prompts that begin alike share blocks; each goes on into blocks of its own."""
    prefix = np.arange(100, 140, dtype=np.int32)
    tails = np.random.default_rng(3).integers(0, VOCABULARY, (6, 9)).astype(np.int32)
    requests = [
        Request(index, np.concatenate([prefix, tail]), Sampling(max_tokens=25))
        for index, tail in enumerate(tails)
    ]
    serving = Serving(each.engine())
    serving.run(requests[:1])
    serving.scheduler.take_started()
    answers = serving.run(requests[1:])
    assert all(started.num_prefix_hit_tokens == 40 for started in serving.scheduler.take_started())
    for request in requests:
        each.check(request, answers[request.request_id])


@pytest.mark.parametrize("token_budget", [21, 256])
def test_a_prefix_that_many_bring_at_once_is_computed_once_and_answers_are_the_same(
    each: TinyModel, token_budget: int
) -> None:
    """Who is seated before its prefix is there gets other blocks for it later, in
    the middle of its own prompt if it has begun.
    """
    prefix = np.arange(100, 140, dtype=np.int32)
    tails = np.random.default_rng(6).integers(0, VOCABULARY, (5, 9)).astype(np.int32)
    requests = [
        Request(index, np.concatenate([prefix, tail]), Sampling(max_tokens=25))
        for index, tail in enumerate(tails)
    ]
    serving = Serving(each.engine(), token_budget)
    answers = serving.run(requests)
    assert sum(started.num_prefix_hit_tokens for started in serving.scheduler.take_started()) == 4 * len(
        prefix
    )
    for request in requests:
        each.check(request, answers[request.request_id])


def test_a_whole_conversation_is_found_again(one: TinyModel) -> None:
    """The blocks of an answer are kept as well: the next turn's prompt is prompt + answer + more."""
    first = Request(0, np.arange(30, dtype=np.int32), Sampling(max_tokens=30))
    serving = Serving(one.engine())
    answer = serving.run([first])[0]
    serving.scheduler.take_started()
    turn = np.concatenate([first.prompt, np.array([*answer, 7, 8, 9], np.int32)])
    second = Request(1, turn, Sampling(max_tokens=30))
    one.check(second, serving.run([second])[1])
    assert serving.scheduler.take_started()[0].num_prefix_hit_tokens == 56


def test_cancelled_requests_leave_no_trace_in_their_slots(each: TinyModel) -> None:
    requests = random_requests(12, seed=4)
    serving = Serving(each.engine(slots=3))
    for request in requests:
        serving.submit(request)
    for request in requests[::2]:
        for _ in range(4):
            serving.step()
        serving.scheduler.cancel(request.request_id)
    answers = serving.run()
    for request in requests[1::2]:
        each.check(request, answers[request.request_id])


def test_a_restarted_request_goes_on_as_if_nothing_had_happened(each: TinyModel) -> None:
    """Prompt + output so far are prefilled in a new engine; limits count on."""
    requests = random_requests(6, seed=5)
    serving = Serving(each.engine())
    for request in requests:
        cut = (1, 7, 19)[request.request_id % 3]
        serving.submit(request, each.reference(request.prompt, request.sampling.max_tokens)[0][:cut])
    answers = serving.run()
    for request in requests:
        each.check(request, answers[request.request_id])
        assert serving.finishes[request.request_id] == Finish.LENGTH


def test_evicted_requests_go_on_where_they_were(one: TinyModel) -> None:
    """Too few blocks for all that were admitted: the youngest makes way and comes back."""
    requests = random_requests(8, seed=6, max_tokens=50)
    serving = Serving(one.engine(kv_blocks=24, max_model_tokens=120), reserve=_reserve_little)
    answers = serving.run(requests)
    assert serving.scheduler.num_evictions > 0
    for request in requests:
        one.check(request, answers[request.request_id])


@pytest.mark.parametrize("ahead", [0, 2])
def test_steps_launched_ahead_of_a_stop_change_nothing(each: TinyModel, ahead: int) -> None:
    """The host learns of a stop id `ahead` steps late; meanwhile the row was
    launched again, and its slot goes to another request.
    """
    requests = [_stopping(each, request, 5 + request.request_id) for request in random_requests(12, seed=7)]
    serving = Serving(each.engine(slots=3), ahead=ahead)
    answers = serving.run(requests)
    for request in requests:
        expected, _ = each.reference(request.prompt, 50)
        length = expected.index(request.sampling.stop_ids[0]) + 1
        each.check(request, answers[request.request_id], length)
        assert serving.finishes[request.request_id] == Finish.STOP


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_prompt_that_repeats_a_stopped_answer_finds_only_blocks_that_were_computed(
    one: TinyModel, ahead: int
) -> None:
    """The stop id itself may be the last token of a block: its KV was
    computed by a step launched ahead, or not at all.
    """
    prompt = np.arange(11, dtype=np.int32)
    for length in range(4, 8):
        serving = Serving(one.engine(block_tokens=1), ahead=ahead)
        first = _stopping(one, Request(0, prompt, Sampling(50)), length)
        answer = serving.run([first])[0]
        second = Request(
            1, np.concatenate([prompt, np.array([*answer, 5], np.int32)]), Sampling(max_tokens=20)
        )
        one.check(second, serving.run([second])[1])


def test_no_stop_id_comes_before_min_tokens(each: TinyModel) -> None:
    """transformers' min_new_tokens with several EOS ids; the others in the batch go undisturbed."""
    prompt = np.arange(20, dtype=np.int32)
    free, _ = each.reference(prompt, 50)
    stops, minimum = (free[3], free[6], free[12]), 10
    request = Request(
        0, prompt, Sampling(max_tokens=40, min_tokens=minimum, stop_ids=(*stops, VOCABULARY + 5))
    )
    others = [Request(r.request_id + 1, r.prompt, r.sampling) for r in random_requests(3)]
    answers = Serving(each.engine()).run([request, *others])
    expected, _ = generate(
        each.model, prompt, 40, min_new_tokens=minimum, eos_token_id=list(stops), pad_token_id=0
    )
    assert answers[0] == expected
    assert not set(answers[0][:minimum]) & set(stops)
    for other in others:
        each.check(other, answers[other.request_id])


def test_a_sequence_ends_where_the_model_ends(one: TinyModel) -> None:
    request = Request(0, np.arange(40, dtype=np.int32), Sampling(max_tokens=50))
    serving = Serving(one.engine(max_model_tokens=64), ahead=1)
    one.check(request, serving.run([request])[0], 24)
    assert serving.finishes[0] == Finish.LENGTH


def test_a_step_of_chunks_that_sample_nothing_gives_no_tokens(one: TinyModel) -> None:
    serving = Serving(one.engine(), token_budget=8, ahead=0)
    serving.submit(Request(0, np.arange(40, dtype=np.int32), Sampling(max_tokens=2)))
    serving.step()
    assert serving.answers[0] == []
    assert len(serving.run()[0]) == 2


def test_tokens_in_bfloat16_are_nearly_as_good_as_those_of_float32(each: TinyModel) -> None:
    """Prefill and batched decode round differently in bfloat16: how much is
    agreed on is printed, how good a token is asserted.
    """
    requests = random_requests(8, seed=8)
    answers = Serving(each.engine(dtype="bfloat16")).run(requests)
    each.check_rounding("bfloat16", requests, answers, BFLOAT16_REGRET)


def _stopping(tiny: TinyModel, request: Request, index: int) -> Request:
    """`request` with token `index` of its answer as stop id, and one that does not come."""
    expected, _ = tiny.reference(request.prompt, 50)
    absent = next(token for token in range(VOCABULARY) if token not in expected)
    return Request(
        request.request_id, request.prompt, Sampling(max_tokens=50, stop_ids=(expected[index], absent))
    )


def _reserve_little(sequence: Sequence) -> int:
    return len(sequence.tokens) + 1
