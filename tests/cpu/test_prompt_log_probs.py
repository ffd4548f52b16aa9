"""Log-probabilities of prompts' tokens are torch.log_softmax of transformers' logits in float32, at all
positions, however the prompts are cut; others that run beside them notice nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from python_backends.engine.cpu.library import library
from python_backends.engine.protocol import Engine
from python_backends.nouns.request import LogProbs, Request
from python_backends.nouns.step import MOST_SCORED
from python_backends.streams.log_probs import PromptScores
from tests.support.tiny_models import VOCABULARY, Serving, TinyModel, random_requests

ROUNDING = 5e-4  # of float32 through a whole model; logits here are as wide as 30
KINDS = [
    "torch",
    pytest.param("layers", marks=pytest.mark.skipif(library() is None, reason="wants g++ and AVX2")),
]


class Scored(Serving):
    """Keeps what streams keep of prompts."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.scores: dict[int, PromptScores] = {}
        self.num_rows: list[int] = []  # scored in each step that scores any

    def submit(self, request: Request, delivered: Any = ()) -> None:
        self.scores.setdefault(request.request_id, PromptScores(request))
        super().submit(request, delivered)

    def whole(self, request: Request) -> LogProbs:
        found = self.scores[request.request_id].whole()
        assert found is not None
        return found

    def _apply(self, plan: Any) -> None:
        output = self.engine.collect()
        scores = self.scheduler.prompt_log_probs(plan, output)
        if scores is not None:
            self.num_rows.append(len(scores.indices))
            for request_id in set(scores.request_ids.tolist()):
                its = scores.request_ids == request_id
                self.scores[request_id].put(scores.indices[its], scores.values.kept(its))
        events = self.scheduler.apply(plan, output)
        for request_id, token in zip(events.request_ids.tolist(), events.tokens.tolist(), strict=True):
            self.answers[request_id].append(token)


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


def _reference(tiny: TinyModel, prompt: Any) -> Tensor:
    """[prompt - 1, vocabulary]"""
    with torch.no_grad():
        logits = tiny.model(torch.tensor([prompt.tolist()])).logits[0, :-1]
    return torch.log_softmax(logits.float(), -1)


def _check(tiny: TinyModel, request: Request, values: LogProbs) -> None:
    expected, num_top = _reference(tiny, request.prompt), request.sampling.num_top_log_probs
    next_tokens = torch.from_numpy(request.prompt[1:].astype(np.int64))[:, None]
    np.testing.assert_allclose(values.chosen, expected.gather(1, next_tokens)[:, 0].numpy(), atol=ROUNDING)
    top = expected.topk(num_top).values.numpy()
    np.testing.assert_allclose(values.top.reshape(top.shape), top, atol=ROUNDING)
    ids = torch.from_numpy(values.top_ids.reshape(top.shape).astype(np.int64))
    np.testing.assert_allclose(expected.gather(1, ids).numpy(), top, atol=ROUNDING)


def check_all(tiny: TinyModel, engine: Engine, requests: list[Request], token_budget: int) -> Scored:
    serving = Scored(engine, token_budget)
    answers = serving.run(requests)
    for request in requests:
        if request.wants_prompt_log_probs:
            _check(tiny, request, serving.whole(request))
        else:
            assert serving.scores[request.request_id].whole() is None
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
    assert sum(serving.num_rows) == 2 * 299
    assert max(serving.num_rows) <= MOST_SCORED


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_request_shares_the_blocks_of_one_that_was_scored(one: TinyModel, kind: str) -> None:
    prompt = np.arange(100, dtype=np.int32)
    first, second = (request.changed(prompt=prompt) for request in random_requests(2))
    serving = Scored(one.engine_of(kind))
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
    serving = Scored(one.engine())
    serving.submit(request, one.reference(request.prompt, request.sampling.max_tokens)[0][:3])
    answers = serving.run()
    one.check(request, answers[request.request_id])
    assert serving.num_rows == []


def test_a_prompt_of_one_token_has_none(one: TinyModel) -> None:
    request = random_requests(1)[0].changed(prompt=np.array([7], np.int32), wants_prompt_log_probs=True)
    serving = Scored(one.engine())
    serving.run([request])
    assert serving.whole(request).chosen.tolist() == []


def test_steps_of_fixed_shape_leave_scored_ones_to_others(one: TinyModel) -> None:
    engine = one.engine(slots=4, cuda_graphs="eager")
    assert engine._launcher.decode_steps is not None
    check_all(one, engine, asking(random_requests(6, seed=7)), 20)
