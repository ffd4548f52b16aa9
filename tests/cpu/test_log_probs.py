"""Log-probabilities are torch.log_softmax of transformers' logits in
float32, whatever else shapes the choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from python_backends.engine.cpu.library import library
from python_backends.engine.protocol import Engine
from python_backends.engine.slots.log_probs import LogProbRows, log_probs, row_log_probs
from python_backends.nouns.request import Request
from python_backends.streams.log_probs import StreamLogProbs, by_row
from tests.support.tiny_models import Serving, TinyModel, logits_along, random_requests

ROUNDING = 5e-4  # of float32 through a whole model; logits here are as wide as 30


class Scored(Serving):
    """Keeps what streams keep."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.scores: dict[int, StreamLogProbs] = {}

    def submit(self, request: Request, delivered: Any = ()) -> None:
        self.scores.setdefault(request.request_id, StreamLogProbs(request.sampling.num_top_log_probs))
        super().submit(request, delivered)

    def _apply(self, plan: Any) -> None:
        events = self.scheduler.apply(plan, self.engine.collect())
        scores = by_row(events.log_probs)
        for row, (request_id, token) in enumerate(
            zip(events.request_ids.tolist(), events.tokens.tolist(), strict=True)
        ):
            self.answers[request_id].append(token)
            if row in scores:
                self.scores[request_id].append(scores[row])


def _reference(tiny: TinyModel, request: Request, answer: list[int]) -> Tensor:
    """[tokens, vocabulary] transformers' log-probabilities at each token of `answer`."""
    return torch.log_softmax(logits_along(tiny.model, request.prompt, answer), -1)


def _requests(**sampling: Any) -> list[Request]:
    """Every third asks for nothing, the others for 0 to 4 of the top."""
    return [
        request.changed(
            sampling=request.sampling.changed(
                **sampling, log_probs=index % 3 > 0, num_top_log_probs=index % 3 and index // 2
            )
        )
        for index, request in enumerate(random_requests(9, seed=12, max_tokens=16))
    ]


def _check(tiny: TinyModel, request: Request, answer: list[int], scores: StreamLogProbs) -> None:
    values, expected = scores.since(0), _reference(tiny, request, answer)
    num_top = request.sampling.num_top_log_probs
    chosen = expected.gather(1, torch.tensor(answer)[:, None])[:, 0]
    np.testing.assert_allclose(values.chosen, chosen.numpy(), atol=ROUNDING)
    top = expected.topk(num_top).values.numpy()
    np.testing.assert_allclose(values.top.reshape(-1, num_top) if num_top else top, top, atol=ROUNDING)
    ids = torch.from_numpy(values.top_ids.reshape(len(answer), num_top).astype(np.int64))
    np.testing.assert_allclose(expected.gather(1, ids).numpy(), top, atol=ROUNDING)
    assert scores.sum(len(answer)) == pytest.approx(float(chosen.sum()), abs=1e-2)


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 1.5, "top_k": 30}, {"repetition_penalty": 1.5, "bad_words": ((1,), (2, 3))}],
    ids=["greedy", "drawn", "penalized"],
)
def test_log_probabilities_are_those_of_transformers(each: TinyModel, sampling: dict[str, Any]) -> None:
    _check_all(each, each.engine(slots=4), _requests(**sampling))


@pytest.mark.skipif(library() is None, reason="wants a C++ compiler, and AVX2")
def test_log_probabilities_of_layers_in_cpp_are_those_of_transformers(one: TinyModel) -> None:
    _check_all(one, one.layers_engine(slots=4), _requests(repetition_penalty=1.5))


def _check_all(tiny: TinyModel, engine: Engine, requests: list[Request]) -> None:
    serving = Scored(engine, token_budget=20)
    answers = serving.run(requests)
    for request in requests:
        if request.sampling.log_probs:
            _check(tiny, request, answers[request.request_id], serving.scores[request.request_id])
        else:
            assert len(serving.scores[request.request_id].since(0).chosen) == 0


def test_log_probabilities_go_on_after_a_restart(one: TinyModel) -> None:
    requests = [request for request in _requests(temperature=1.0) if request.sampling.log_probs]
    whole = Scored(one.engine())
    answers = whole.run(requests)
    again = Scored(one.engine())
    for request in requests:
        again.submit(request, answers[request.request_id][:8])
    again.run()
    for request in requests:
        rest = whole.scores[request.request_id].since(8)
        np.testing.assert_allclose(
            again.scores[request.request_id].since(0).chosen, rest.chosen, atol=ROUNDING
        )


def test_asking_changes_no_token_of_anybody(one: TinyModel) -> None:
    requests = _requests(temperature=1.3, seed=5)
    quiet = [
        request.changed(sampling=request.sampling.changed(log_probs=False, num_top_log_probs=0))
        for request in requests
    ]
    assert Serving(one.engine()).run(requests) == Serving(one.engine()).run(quiet)


def test_packed_and_unpacked_in_the_order_of_the_plan() -> None:
    """Batch rows 0, 2 and 3 ask; they are tokens 5, 1 and 4 of the step. Ids survive as bits."""
    logits = torch.randn((4, 200_000), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    tokens = torch.tensor([199_999, 5, 123_456, 0])
    rows = np.array([0, 2, 3])
    packed = log_probs(logits, tokens, LogProbRows(torch.from_numpy(rows), rows, 3))
    out = row_log_probs(packed.numpy(), np.array([5, 1, 4]))
    expected = torch.log_softmax(logits.double(), -1)  # in float32 it is off by 1e-5 itself
    assert out.rows.tolist() == [1, 4, 5]
    np.testing.assert_allclose(
        out.values.chosen, [float(expected[row, tokens[row]]) for row in (2, 3, 0)], atol=1e-5
    )
    assert out.values.num_top == 3
    for place, row in enumerate((2, 3, 0)):
        ids = out.values.top_ids[3 * place : 3 * place + 3].astype(np.int64)
        np.testing.assert_allclose(expected[row, ids], expected[row].topk(3).values, atol=1e-5)
