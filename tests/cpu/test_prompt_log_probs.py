"""Log-probabilities of prompts' tokens are torch.log_softmax of transformers' logits in float32, at all
positions, however the prompts are cut; others that run beside them notice nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from python_backends.engine.cpu.library import library
from python_backends.engine.protocol import Engine
from python_backends.nouns.request import Request
from python_backends.nouns.step import MOST_SCORED
from tests.support.tiny_models import VOCABULARY, Serving, TinyModel, random_requests

ROUNDING = 5e-4  # of float32 through a whole model; logits here are as wide as 30
KINDS = [
    "torch",
    pytest.param("layers", marks=pytest.mark.skipif(library() is None, reason="wants g++ and AVX2")),
]


def asking(requests: list[Request]) -> list[Request]:
    """Every third asks for nothing, the others for 0 to 4 of the top."""
    return [
        request.changed(
            wants_prompt_log_probs=index % 3 > 0,
            sampling=request.sampling.changed(
                log_probs=index % 3 > 0, num_top_log_probs=index % 3 and index // 2
            ),
        )
        for index, request in enumerate(requests)
    ]


def check(model: Any, request: Request, serving: Serving) -> None:
    """`model`: of transformers, or of PEFT."""
    values, num_top = serving.prompts[request.request_id].whole(), request.sampling.num_top_log_probs
    assert values is not None
    with torch.no_grad():
        logits = model(torch.tensor([request.prompt.tolist()])).logits[0, :-1]
    expected = torch.log_softmax(logits.float(), -1)
    next_tokens = torch.from_numpy(request.prompt[1:].astype(np.int64))[:, None]
    np.testing.assert_allclose(values.chosen, expected.gather(1, next_tokens)[:, 0].numpy(), atol=ROUNDING)
    top = expected.topk(num_top).values.numpy()
    np.testing.assert_allclose(values.top.reshape(top.shape), top, atol=ROUNDING)
    ids = torch.from_numpy(values.top_ids.reshape(top.shape).astype(np.int64))
    np.testing.assert_allclose(expected.gather(1, ids).numpy(), top, atol=ROUNDING)


def check_all(tiny: TinyModel, engine: Engine, requests: list[Request], token_budget: int) -> Serving:
    serving = Serving(engine, token_budget)
    answers = serving.run(requests)
    for request in requests:
        if request.wants_prompt_log_probs:
            check(tiny.model, request, serving)
        else:
            assert request.request_id not in serving.prompts
    tiny.check_all(requests, answers)
    return serving


@pytest.mark.parametrize("token_budget", [7, 20, 512])
@pytest.mark.parametrize("kind", KINDS)
def test_all_positions_are_those_of_transformers_however_prompts_are_cut(
    one: TinyModel, kind: str, token_budget: int
) -> None:
    """The answers of all, asking or not, are transformers', too."""
    check_all(one, one.engine_of(kind, slots=4), asking(random_requests(9, seed=12)), token_budget)


def test_those_of_each_family(each: TinyModel) -> None:
    check_all(each, each.engine(slots=4), asking(random_requests(4, seed=3)), 20)


@pytest.mark.parametrize("kind", KINDS)
def test_long_prompts_that_begin_alike_are_computed_whole_and_in_bounded_steps(
    one: TinyModel, kind: str
) -> None:
    """The first fills blocks that the second would share if it asked for nothing."""
    prompt = np.random.default_rng(5).integers(0, VOCABULARY, 300).astype(np.int32)
    first, second, third = (request.changed(prompt=prompt) for request in random_requests(3))
    asking = [request.changed(wants_prompt_log_probs=True) for request in (second, third)]
    serving = check_all(one, one.engine_of(kind, slots=4), [first, *asking], 512)
    assert sum(serving.num_scored) == 2 * 299
    assert max(serving.num_scored) <= MOST_SCORED


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_request_shares_the_blocks_of_one_that_was_scored(one: TinyModel, kind: str) -> None:
    prompt = np.arange(100, dtype=np.int32)
    first, second = (request.changed(prompt=prompt) for request in random_requests(2))
    serving = Serving(one.engine_of(kind))
    serving.run([first.changed(wants_prompt_log_probs=True)])
    serving.scheduler.take_started()
    serving.run([second])
    assert serving.scheduler.take_started()[0].num_prefix_hit_tokens >= 96
    one.check_all([first, second], serving.answers)


def test_asking_changes_no_token_of_anybody(one: TinyModel) -> None:
    drawn = [
        each.changed(sampling=each.sampling.changed(temperature=1.3, seed=5))
        for each in random_requests(9, seed=2)
    ]
    assert Serving(one.engine()).run(asking(drawn)) == Serving(one.engine()).run(drawn)


def test_a_life_after_some_tokens_computes_them_no_more(one: TinyModel) -> None:
    [request] = asking(random_requests(2, seed=4))[1:]
    serving = Serving(one.engine())
    serving.submit(request, one.reference(request.prompt, 3))
    answers = serving.run()
    one.check(request, answers[request.request_id])
    assert serving.num_scored == []


def test_a_prompt_of_one_token_has_none(one: TinyModel) -> None:
    request = random_requests(1)[0].changed(prompt=np.array([7], np.int32), wants_prompt_log_probs=True)
    serving = Serving(one.engine())
    serving.run([request])
    found = serving.prompts[request.request_id].whole()
    assert found is not None
    assert found.chosen.tolist() == []


def test_steps_of_fixed_shape_leave_scored_ones_to_others(one: TinyModel) -> None:
    engine = one.engine(slots=4, cuda_graphs="eager")
    assert engine._launcher.decode_steps is not None
    check_all(one, engine, asking(random_requests(6, seed=7)), 20)
