"""The hidden states that engines give, at the ends of prompts and while answers are written, are those of
transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

from python_backends.engine.cpu.library import library
from python_backends.engine.model.limits import STATE_DEPTH
from python_backends.nouns.request import Floats, Request, Sampling
from python_backends.nouns.stages import READ_EVERY, WRITTEN
from tests.cpu.test_layers import wanted
from tests.support.tiny_models import Serving, TinyModel, random_requests

KINDS = ["torch", *(["layers"] if library() is not None else [])]


def expected(model: TinyModel, tokens: Iterable[int], layer: int) -> Floats:
    """[hidden] of transformers, after `layer` layers, at the last of `tokens`."""
    ids = torch.tensor([list(tokens)])
    with torch.no_grad():
        hidden = model.model(ids, output_hidden_states=True).hidden_states[layer]
    state: Floats = hidden[0, -1].numpy()
    return state


def check(model: TinyModel, serving: Serving, requests: Iterable[Request], share: float = 1e-4) -> None:
    """`share`: the most that a number may be off, of the largest one."""
    layer = serving.engine.limits.state_layer
    assert layer == round(STATE_DEPTH * model.model.config.num_hidden_layers)
    for request in requests:
        prompt, answer = request.prompt.tolist(), serving.answers[request.request_id]
        read = range(0, min(len(answer), WRITTEN[-1] + 1), READ_EVERY)
        assert [number for each, number in serving.states if each == request.request_id] == list(read)
        for count in read:
            exact = expected(model, [*prompt, *answer[:count]], layer)
            state = serving.states[request.request_id, count]
            assert np.abs(state - exact).max() <= share * np.abs(exact).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama_grouped", "gemma3", "gpt_neox"])
def test_each_prompt_that_ends_and_each_answer_has_transformers_hidden_states(
    tiny: Callable[[str], TinyModel], name: str, kind: str
) -> None:
    """In chunks, beside others that decode."""
    model, requests = tiny(name), random_requests(10, seed=3, max_tokens=70)
    serving = Serving(model.engine_of(kind), token_budget=24)
    serving.run(requests)
    check(model, serving, requests)
    model.check_all(requests, serving.answers)


@pytest.mark.parametrize("options", [{"cuda_graphs": "eager"}, {"weights": "int8"}])
def test_other_steps_of_torch_have_it_too(one: TinyModel, options: dict[str, Any]) -> None:
    requests = random_requests(6, seed=4, max_tokens=70)
    serving = Serving(one.engine(**options))
    serving.run(requests)
    check(one, serving, requests, 0.2 if "weights" in options else 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_is_found_whole_in_kept_blocks_has_the_same(one: TinyModel, kind: str) -> None:
    prompt = np.arange(3, 99, dtype=np.int32)  # whole blocks
    first, second = (Request(number, prompt, Sampling(max_tokens=3)) for number in (1, 2))
    serving = Serving(one.engine_of(kind), token_budget=256)
    serving.run([first])
    serving.run([second])
    check(one, serving, [first, second])


def test_a_request_that_goes_on_after_its_first_tokens_gives_none(one: TinyModel) -> None:
    """Of its prompt, which was given before its first token; the others as if nothing had been."""
    request = random_requests(1, seed=6, max_tokens=70)[0]
    whole = Serving(one.engine())
    answer = whole.run([request])[request.request_id]
    serving = Serving(one.engine())
    serving.submit(request, answer[:5])
    assert serving.run() == {request.request_id: answer}
    assert list(serving.states) == [(request.request_id, 32), (request.request_id, 64)]
    for place, state in serving.states.items():
        np.testing.assert_allclose(state, whole.states[place], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_none_is_given_where_the_settings_want_none(one: TinyModel, kind: str) -> None:
    engine = one.engine_of(kind, states=False)
    serving = Serving(engine)
    serving.run(random_requests(3, seed=7))
    assert engine.limits.state_layer == 0
    assert serving.states == {}


@wanted
@pytest.mark.parametrize(
    ("dtype", "share"),
    [
        ("float32", 1e-4),
        ("bfloat16", 0.1),
    ],
)
def test_layers_have_it_too(one: TinyModel, dtype: str, share: float) -> None:
    requests = random_requests(10, seed=8, max_tokens=70)
    serving = Serving(one.layers_engine(dtype=dtype))
    serving.run(requests)
    check(one, serving, requests, share)


@wanted
def test_layers_give_none_where_the_settings_want_none(one: TinyModel) -> None:
    serving = Serving(one.layers_engine(states=False))
    serving.run(random_requests(3, seed=7))
    assert serving.states == {}
