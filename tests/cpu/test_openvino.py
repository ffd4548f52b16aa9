"""The OpenVINO engine gives transformers' tokens too, whatever happens around a request."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from python_backends.engine.protocol import Announcing
from python_backends.nouns.request import Finish, Request, Sampling
from python_backends.settings import SettingsError
from tests.support.tiny_models import (
    BFLOAT16_REGRET,
    RELATIVES,
    SOFT_CAPPED,
    TINY,
    VOCABULARY,
    Serving,
    TinyModel,
    random_requests,
)


@pytest.fixture(params=sorted(TINY.keys() - SOFT_CAPPED))
def computed(request: pytest.FixtureRequest, tiny: Callable[[str], TinyModel]) -> TinyModel:
    """Every tiny model that it computes, in turn."""
    return tiny(request.param)


@pytest.mark.parametrize(("slots", "token_budget"), [(3, 5), (8, 256)])
def test_answers_do_not_depend_on_slots_and_chunk_size(
    computed: TinyModel, slots: int, token_budget: int
) -> None:
    requests = random_requests(8)
    answers = Serving(computed.openvino_engine(slots=slots), token_budget).run(requests)
    for request in requests:
        computed.check(request, answers[request.request_id])


@pytest.mark.parametrize("name", sorted(RELATIVES.keys() - SOFT_CAPPED))
def test_relatives_answer_as_transformers_does(tiny: Callable[[str], TinyModel], name: str) -> None:
    """In chunks, next to others, beyond the window."""
    requests = random_requests(3, seed=5)
    answers = Serving(tiny(name).openvino_engine(slots=2), token_budget=13).run(requests)
    for request in requests:
        tiny(name).check(request, answers[request.request_id])


@pytest.mark.parametrize("ahead", [1, 2])
def test_steps_that_are_computed_while_the_loop_goes_on_give_the_same_answers(
    computed: TinyModel, ahead: int
) -> None:
    requests = random_requests(10, seed=4)
    serving = Serving(computed.openvino_engine(slots=3, steps_ahead=ahead), ahead=ahead)
    answers = serving.run(requests)
    for request in requests:
        computed.check(request, answers[request.request_id])
    serving.engine.close()


@pytest.mark.parametrize("ahead", [0, 1])
def test_rows_go_on_beside_padding_as_they_do_alone(one: TinyModel, ahead: int) -> None:
    """11 rows and 13 are padded to 12 and 14 at every step of their run."""
    for count in (11, 13):
        requests = random_requests(count, seed=12, max_tokens=40)
        serving = Serving(one.openvino_engine(slots=count, steps_ahead=ahead), token_budget=1000, ahead=ahead)
        answers = serving.run(requests)
        for request in requests:
            one.check(request, answers[request.request_id])
        serving.engine.close()


def test_stops_draws_penalties_and_log_probabilities_are_those_of_one_step_after_the_other(
    one: TinyModel,
) -> None:
    free = Serving(one.openvino_engine()).run(random_requests(1, seed=6))[0]
    requests = random_requests(1, seed=6, stop_ids=(free[9],))
    others = random_requests(
        8, seed=7, temperature=0.9, repetition_penalty=1.3, log_probs=True, num_top_log_probs=2
    )
    requests += [Request(request.request_id + 1, request.prompt, request.sampling) for request in others]
    expected = Serving(one.openvino_engine(slots=3), ahead=0).run(requests)
    assert expected[0] == free[: free.index(free[9]) + 1]
    for ahead in (1, 2):
        assert Serving(one.openvino_engine(slots=3, steps_ahead=ahead), ahead=ahead).run(requests) == expected


def test_every_step_but_the_first_tells_how_long_it_was_waited_for(one: TinyModel) -> None:
    serving = Serving(one.openvino_engine(steps_ahead=1), ahead=0)
    serving.submit(random_requests(1)[0])
    outputs = []
    while not serving.scheduler.is_idle:
        plan = serving.scheduler.plan()
        assert plan is not None
        serving.engine.launch(plan)
        outputs.append(serving.engine.collect())
        serving.scheduler.apply(plan, outputs[-1])
    assert all(output.busy_s > 0 for output in outputs)
    assert outputs[0].gap_s == 0
    assert all(output.gap_s > 0 for output in outputs[1:])


def test_a_loop_that_waits_is_told_when_a_step_is_done(one: TinyModel) -> None:
    serving, done = Serving(one.openvino_engine(steps_ahead=1), ahead=1), threading.Semaphore(0)
    assert isinstance(serving.engine, Announcing)
    serving.engine.on_done(done.release)
    serving.submit(random_requests(1)[0])
    for _ in range(5):
        serving.step()
        assert done.acquire(timeout=30)
    serving.engine.close()


def test_requests_come_and_go_while_steps_are_launched_ahead(one: TinyModel) -> None:
    requests = random_requests(12, seed=2)
    serving = Serving(one.openvino_engine(slots=3, steps_ahead=1), ahead=1)
    for request in requests:
        serving.submit(request)
    for request in requests[::3]:
        for _ in range(4):
            serving.step()
        serving.scheduler.cancel(request.request_id)
    answers = serving.run()
    for request in [request for request in requests if request.request_id % 3]:
        one.check(request, answers[request.request_id])


def test_shared_prefix_blocks_give_the_same_answers(one: TinyModel) -> None:
    prefix = np.arange(100, 180, dtype=np.int32)
    tails = np.random.default_rng(3).integers(0, VOCABULARY, (5, 9)).astype(np.int32)
    requests = [
        Request(index, np.concatenate([prefix, tail]), Sampling(max_tokens=25))
        for index, tail in enumerate(tails)
    ]
    serving = Serving(one.openvino_engine())
    serving.run(requests[:1])
    serving.scheduler.take_started()
    answers = serving.run(requests[1:])
    assert all(started.num_prefix_hit_tokens == 64 for started in serving.scheduler.take_started())
    for request in requests:
        one.check(request, answers[request.request_id])


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_prefix_that_many_bring_at_once_is_computed_once_and_answers_are_the_same(
    one: TinyModel, steps_ahead: int
) -> None:
    """Some get other blocks for the prefix while the step that
    computes it, or one of their own, is under way.
    """
    prefix = np.arange(100, 164, dtype=np.int32)
    tails = np.random.default_rng(6).integers(0, VOCABULARY, (5, 9)).astype(np.int32)
    requests = [
        Request(index, np.concatenate([prefix, tail]), Sampling(max_tokens=25))
        for index, tail in enumerate(tails)
    ]
    serving = Serving(one.openvino_engine(steps_ahead=steps_ahead), token_budget=50, ahead=steps_ahead)
    answers = serving.run(requests)
    assert sum(started.num_prefix_hit_tokens for started in serving.scheduler.take_started()) == 4 * len(
        prefix
    )
    for request in requests:
        one.check(request, answers[request.request_id])


def test_a_restarted_request_goes_on_as_if_nothing_had_happened(one: TinyModel) -> None:
    requests = random_requests(5, seed=5)
    serving = Serving(one.openvino_engine())
    for request in requests:
        serving.submit(request, one.reference(request.prompt, request.sampling.max_tokens)[0][:7])
    answers = serving.run()
    for request in requests:
        one.check(request, answers[request.request_id])
        assert serving.finishes[request.request_id] == Finish.LENGTH


def test_a_step_of_chunks_that_sample_nothing_gives_no_tokens(one: TinyModel) -> None:
    serving = Serving(one.openvino_engine(), token_budget=8, ahead=0)
    serving.submit(Request(0, np.arange(40, dtype=np.int32), Sampling(max_tokens=2)))
    serving.step()
    assert serving.answers[0] == []
    assert len(serving.run()[0]) == 2


def test_the_same_seed_draws_the_same_text_in_any_company(one: TinyModel) -> None:
    drawn = Request(
        0, np.arange(20, dtype=np.int32), Sampling(max_tokens=30, temperature=0.8, top_p=0.9, seed=7)
    )
    alone = Serving(one.openvino_engine()).run([drawn])[0]
    others = [
        Request(request.request_id + 1, request.prompt, request.sampling) for request in random_requests(5)
    ]
    assert Serving(one.openvino_engine()).run([*others, drawn])[0] == alone


def test_tokens_in_bfloat16_are_nearly_as_good_as_those_of_float32(one: TinyModel) -> None:
    requests = random_requests(8, seed=8)
    answers = Serving(one.openvino_engine(dtype="bfloat16")).run(requests)
    one.check_rounding("bfloat16, openvino", requests, answers, BFLOAT16_REGRET)


@pytest.mark.parametrize(
    ("name", "setting", "named"),
    [
        ("gemma2", {}, "soft-capped"),
        ("llama_grouped", {"block_tokens": 16}, r"engine\.block_tokens = 16"),
        ("llama_grouped", {"device": "cuda"}, r"model\.device = 'cuda'"),
    ],
)
def test_what_it_can_not_run_is_refused_by_name(
    tiny: Callable[[str], TinyModel], name: str, setting: dict[str, object], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        tiny(name).openvino_engine(**setting)
