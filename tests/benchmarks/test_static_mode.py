"""Static batches on the torch engine: the texts of continuous batching, and memory that really ends."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.magnus.static_batching.batches import STATIC_POLICIES, BatchLimits
from benchmarks.magnus.static_batching.mode import Answer, Served, StaticMode
from python_backends.engine.cpu.library import library
from python_backends.engine.protocol import Engine
from tests.support.tiny_models import Serving, TinyModel, random_requests


def served(
    one: TinyModel, policy: str, expected_tokens: int, blocks: int, **sampling: object
) -> list[Served]:
    return serve(one.engine(slots=16, kv_blocks=blocks), policy, expected_tokens, **sampling)


def serve(engine: Engine, policy: str, expected_tokens: int, **sampling: object) -> list[Served]:
    limits = BatchLimits(engine.limits.num_blocks, engine.limits.block_tokens, 16, fixed_size=5)
    static = StaticMode(engine, STATIC_POLICIES[policy], limits, lambda shapes: np.ones(len(shapes)))
    for request in random_requests(12, seed=9, **sampling):
        static.submit(request, expected_tokens, 0.0)
    turns = []
    while static.num_waiting:
        turns.append(static.turn())
    return turns


def answers(turns: list[Served]) -> dict[int, Answer]:
    listed = [answer for turn in turns for answer in turn.answers]
    found = {answer.request_id: answer for answer in listed}
    assert len(found) == len(listed) == 12, "every request is answered once"
    return found


@pytest.mark.parametrize("policy", STATIC_POLICIES)
def test_static_batches_give_the_texts_of_continuous_batching(one: TinyModel, policy: str) -> None:
    found = answers(served(one, policy, expected_tokens=30, blocks=400))
    for request in random_requests(12, seed=9):
        one.check(request, found[request.request_id].tokens.tolist())


@pytest.mark.skipif(library() is None, reason="wants a C++ compiler, and AVX2")
def test_layers_in_cpp_give_the_same_texts(one: TinyModel) -> None:
    found = answers(serve(one.layers_engine(slots=16, kv_blocks=200), "magnus", expected_tokens=30))
    for request in random_requests(12, seed=9):
        one.check(request, found[request.request_id].tokens.tolist())


def test_stops_draws_and_penalties_are_those_of_continuous_batching(one: TinyModel) -> None:
    sampling = {"temperature": 0.8, "repetition_penalty": 1.2, "stop_ids": tuple(range(40)), "min_tokens": 3}
    expected = Serving(one.engine(slots=3)).run(random_requests(12, seed=9, **sampling))
    found = answers(served(one, "magnus", expected_tokens=30, blocks=400, **sampling))
    assert {number: answer.tokens.tolist() for number, answer in found.items()} == expected
    assert {len(tokens) for tokens in expected.values()} != {50}, "some stop"


def test_batches_that_run_out_of_kv_blocks_are_split_and_end_with_the_same_texts(one: TinyModel) -> None:
    turns = served(one, "magnus", expected_tokens=1, blocks=48)
    sizes = [len(turn.batch.members) for turn in turns if not turn.answers]
    assert sizes, "the predictions were too short for the blocks there are"
    found = answers(turns)
    for request in random_requests(12, seed=9):
        one.check(request, found[request.request_id].tokens.tolist())
