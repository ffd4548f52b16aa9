"""A row whose logits are no numbers fails alone, whatever engine computes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backends.engine.cpu.library import library
from python_backends.engine.slots.numbers import fail_others
from python_backends.engine.slots.sampler import GREEDY, SamplingRows
from python_backends.nouns.request import Finish, Request
from tests.support.tiny_models import Agreement, Serving, TinyModel, random_requests

NAN, INF = float("nan"), float("inf")
BAD_TOKEN = 7
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("engine", {}),
    "torch, int8": ("engine", {"weights": "int8"}),
    "torch, fixed shapes": ("engine", {"cuda_graphs": "eager"}),
}
if library() is not None:
    ENGINES["layers"] = ("layers_engine", {})
    ENGINES |= {f"layers, {each}": ("layers_engine", {"weights": each}) for each in ("int8", "int4")}


def _finishes(logits: list[list[float]], tokens: list[int], rows: SamplingRows = GREEDY) -> list[int]:
    result, chosen = torch.zeros((2, len(tokens)), dtype=torch.int64), torch.tensor(tokens)
    finishes: list[int] = fail_others(result, torch.tensor(logits), chosen, rows)[1].tolist()
    return finishes


@pytest.mark.parametrize("bad", [NAN, INF, 3e38])
def test_logits_that_are_no_numbers_or_all_equal_fail_their_row_whatever_token_was_chosen(bad: float) -> None:
    logits = [[0.0, 1.0, 2.0], [0.0, bad, 2.0], [-INF, -INF, 2.0], [1.0, 1.0, 1.0]]
    for tokens in ([2, 1, 2, 0], [2, 2, 2, 2]):
        assert _finishes(logits, tokens) == [0, Finish.ERROR, 0, Finish.ERROR]


def test_a_row_that_can_write_nothing_fails() -> None:
    assert _finishes([[-INF, -INF]], [0]) == [Finish.ERROR]
    banned = SamplingRows(banned=torch.tensor([[0, 1], [0, -1]]))
    assert _finishes([[0.0, 1.0], [0.0, 1.0]], [0, 1], banned) == [Finish.ERROR, 0]
    left = SamplingRows(banned=torch.tensor([[1, -1]]))
    assert _finishes([[-INF, 1.0]], [0], left) == [Finish.ERROR], "all but the banned one are impossible"


@pytest.mark.parametrize("bad", [NAN, INF, 3e38])
@pytest.mark.parametrize("name", sorted({"torch", "layers", "layers, int4"} & ENGINES.keys()))
def test_with_a_broken_weight_no_request_is_answered(
    one: TinyModel, tmp_path: Path, name: str, bad: float
) -> None:
    broken = copy.deepcopy(one.model)
    broken.base_model.layers[1].mlp.down_proj.weight.data[0, 0] = bad
    broken.save_pretrained(tmp_path)
    make, options = ENGINES[name]
    serving = Serving(getattr(TinyModel(tmp_path, broken, one.agreement), make)(**options))
    assert serving.run(random_requests(4)) == {number: [] for number in range(4)}
    assert all("not finite" in failed.error for failed in serving.scheduler.take_failed())


@pytest.mark.parametrize("name", ENGINES)
def test_a_request_with_a_broken_embedding_fails_and_others_are_answered_as_ever(
    one: TinyModel, tmp_path: Path, name: str
) -> None:
    broken = copy.deepcopy(one.model)
    broken.get_input_embeddings().weight.data[BAD_TOKEN] = NAN
    broken.save_pretrained(tmp_path)
    make, options = ENGINES[name]
    good = _requests(range(4), draws=False) + _requests(range(4, 8), draws=True)
    ill = [_with_bad_token(request) for request in _requests(range(8, 12), draws=False)]
    ill += [_with_bad_token(request) for request in _requests(range(12, 14), draws=True)]
    expected = Serving(getattr(one, make)(**options)).run(good)
    serving = Serving(getattr(TinyModel(tmp_path, broken, one.agreement), make)(**options))
    mixed = [request for pair in zip(ill, good, strict=False) for request in pair] + good[len(ill) :]
    answers = serving.run(mixed)
    failed = {each.request_id for each in serving.scheduler.take_failed()}
    assert failed == {request.request_id for request in ill}
    assert {request.request_id: answers[request.request_id] for request in good} == expected
    assert not any(answers[number] for number in failed)


def _requests(numbers: range, draws: bool) -> list[Request]:
    made = random_requests(numbers.stop, seed=5, max_tokens=12, temperature=float(draws), bad_words=((7,),))
    return [_changed(made[number]) for number in numbers]


def _changed(request: Request) -> Request:
    return request.changed(prompt=np.where(request.prompt == BAD_TOKEN, 8, request.prompt).astype(np.int32))


def _with_bad_token(request: Request) -> Request:
    prompt = request.prompt.copy()
    prompt[len(prompt) // 2] = BAD_TOKEN
    return request.changed(prompt=prompt)


@pytest.mark.parametrize("make", sorted({make for make, _ in ENGINES.values()}))
def test_log_probabilities_of_impossible_tokens_are_numbers(
    tiny: Callable[[str], TinyModel], tmp_path: Path, make: str
) -> None:
    """A head whose bias leaves three tokens."""
    masked = copy.deepcopy(tiny("phi").model)
    masked.lm_head.bias.data[:] = -INF
    masked.lm_head.bias.data[100:103] = 0
    masked.save_pretrained(tmp_path)
    engine = getattr(TinyModel(tmp_path, masked, Agreement()), make)()
    request = random_requests(1, max_tokens=1, log_probs=True, num_top_log_probs=5)[0]
    scheduler = Serving(engine).scheduler
    scheduler.submit(request, np.zeros(0, np.int32))
    while (plan := scheduler.plan()) is not None:
        engine.launch(plan)
        tokens = scheduler.apply(plan, engine.collect())
    assert tokens.log_probs is not None
    top = tokens.log_probs.values.top.tolist()
    assert top[3:] == [-9999, -9999]
    assert np.exp(top[:3]).sum() == pytest.approx(1)
    assert tokens.tokens[0] in (100, 101, 102)
