"""The OpenVINO engine gives transformers' tokens too, whatever happens around a request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from python_backends.config import SettingsError
from python_backends.request import Finish, Request, Sampling
from tests.cpu.tiny_models import TINY, VOCABULARY, Serving, TinyModel, random_requests

SOFT_CAPPED = {"gemma2"}  # their attention is not in OpenVINO


@pytest.fixture(params=sorted(TINY.keys() - SOFT_CAPPED))
def computed(request: pytest.FixtureRequest, tiny: Callable[[str], TinyModel]) -> TinyModel:
    """Every tiny model that it computes, in turn."""
    return tiny(request.param)


@pytest.mark.parametrize(("slots", "token_budget"), [(3, 5), (8, 256)])
def test_answers_do_not_depend_on_slots_and_chunk_size(computed: TinyModel, slots: int, token_budget: int) -> None:
    requests = random_requests(8)
    answers = Serving(computed.openvino_engine(slots=slots), token_budget).run(requests)
    for request in requests:
        computed.check(request, answers[request.request_id])


def test_requests_come_and_go_while_steps_are_launched_ahead(one: TinyModel) -> None:
    requests = random_requests(12, seed=2)
    serving = Serving(one.openvino_engine(slots=3), ahead=1)
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
    requests = [Request(index, np.concatenate([prefix, tail]), Sampling(max_tokens=25)) for index, tail in enumerate(tails)]
    serving = Serving(one.openvino_engine())
    serving.run(requests[:1])
    serving.scheduler.take_started()
    answers = serving.run(requests[1:])
    assert all(started.num_prefix_hit_tokens == 64 for started in serving.scheduler.take_started())
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
    drawn = Request(0, np.arange(20, dtype=np.int32), Sampling(max_tokens=30, temperature=0.8, top_p=0.9, seed=7))
    alone = Serving(one.openvino_engine()).run([drawn])[0]
    others = [Request(request.request_id + 1, request.prompt, request.sampling) for request in random_requests(5)]
    assert Serving(one.openvino_engine()).run([*others, drawn])[0] == alone


def test_bfloat16_runs_and_its_agreement_is_measured(one: TinyModel) -> None:
    requests = random_requests(8, seed=8)
    answers = Serving(one.openvino_engine(dtype="bfloat16")).run(requests)
    same = [one.agreeing(request, answers[request.request_id]) for request in requests]
    one.agreement.notes.append(f"bfloat16, openvino, {one.directory.name}: {np.mean(same):.0%} of an answer as in float32, on average")
    assert all(len(answers[request.request_id]) == request.sampling.max_tokens for request in requests)


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
