"""Greedy tokens are those of transformers' generate in float32, whatever happens around a request: by both
engines, in models with windows, soft caps and parallel blocks. Every family once: test_families.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from python_backends.engine.cpu.library import library
from python_backends.engine.protocol import Engine
from python_backends.nouns.request import Finish, Request, Sampling
from python_backends.scheduling.state.sequence import Sequence
from tests.support.tiny_models import VOCABULARY, Serving, TinyModel, generate, random_requests


@dataclass(frozen=True)
class Served:
    """A tiny model, and a kind of engine over it."""

    model: TinyModel
    kind: str

    def engine(self, **options: Any) -> Engine:
        return self.model.engine_of(self.kind, **options)

    def check(self, requests: list[Request], answers: dict[int, list[int]]) -> None:
        self.model.check_all(requests, answers)


SERVED = (
    "torch, gemma2",
    "torch, gpt_neox",
    "torch, qwen3_moe",
    *(["layers, gemma3", "layers, gpt_neox"] if library() is not None else []),
)


@pytest.fixture(params=SERVED)
def served(request: pytest.FixtureRequest, tiny: Callable[[str], TinyModel]) -> Served:
    """Windows beside whole attention, soft caps and experts where the engine has them, parallel blocks."""
    kind, name = request.param.split(", ")
    return Served(tiny(name), kind)


def alike(count: int, seed: int) -> list[Request]:
    """Prompts that begin with the same 96 tokens, whole blocks in both engines."""
    prefix = np.arange(100, 196, dtype=np.int32)
    tails = np.random.default_rng(seed).integers(0, VOCABULARY, (count, 9)).astype(np.int32)
    return [
        Request(index, np.concatenate([prefix, tail]), Sampling(max_tokens=25))
        for index, tail in enumerate(tails)
    ]


@pytest.mark.parametrize(
    ("slots", "token_budget", "block_tokens"), [(1, 24, 5), (2, 5, 1), (5, 24, 16), (8, 256, 100)]
)
def test_answers_do_not_depend_on_slots_and_the_sizes_of_chunks_and_blocks(
    one: TinyModel, slots: int, token_budget: int, block_tokens: int
) -> None:
    requests = random_requests(10)
    engine = one.engine(slots=slots, block_tokens=block_tokens)
    one.check_all(requests, Serving(engine, token_budget).run(requests))


@pytest.mark.parametrize(("slots", "token_budget"), [(3, 5), (8, 256)])
def test_answers_do_not_depend_on_slots_and_chunk_size(served: Served, slots: int, token_budget: int) -> None:
    requests = random_requests(10)
    served.check(requests, Serving(served.engine(slots=slots), token_budget).run(requests))


def test_requests_that_come_while_others_decode_get_their_own_answers(served: Served) -> None:
    requests = random_requests(12, seed=2)
    serving = Serving(served.engine())
    for request in requests:
        serving.submit(request)
        for _ in range(request.request_id % 5):
            serving.step()
    served.check(requests, serving.run())


def test_shared_prefix_blocks_give_the_same_answers(served: Served) -> None:
    """Prompts that begin alike share blocks; each goes on into blocks of its own."""
    requests = alike(6, seed=3)
    serving = Serving(served.engine())
    serving.run(requests[:1])
    serving.scheduler.take_started()
    answers = serving.run(requests[1:])
    assert all(started.num_prefix_hit_tokens == 96 for started in serving.scheduler.take_started())
    served.check(requests, answers)


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("token_budget", [21, 256])
def test_a_prefix_that_many_bring_at_once_is_computed_once_and_answers_are_the_same(
    served: Served, token_budget: int, steps_ahead: int
) -> None:
    """Who is seated before its prefix is there gets other blocks for it later, in the middle of its own
    prompt if it has begun, or while the step that computes it is under way.
    """
    requests = alike(5, seed=6)
    serving = Serving(served.engine(), token_budget, ahead=steps_ahead)
    answers = serving.run(requests)
    assert sum(started.num_prefix_hit_tokens for started in serving.scheduler.take_started()) == 4 * 96
    served.check(requests, answers)


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


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_cancelled_requests_leave_no_trace_in_their_slots(served: Served, steps_ahead: int) -> None:
    requests = random_requests(12, seed=4)
    serving = Serving(served.engine(slots=3), ahead=steps_ahead)
    for request in requests:
        serving.submit(request)
    for request in requests[::2]:
        for _ in range(4):
            serving.step()
        serving.scheduler.cancel(request.request_id)
    served.check(requests[1::2], serving.run())


def test_a_restarted_request_goes_on_as_if_nothing_had_happened(served: Served) -> None:
    """Prompt + output so far are prefilled in a new engine; limits count on."""
    requests = random_requests(6, seed=5)
    serving = Serving(served.engine())
    for request in requests:
        cut = (1, 7, 19)[request.request_id % 3]
        serving.submit(request, served.model.reference(request.prompt, cut))
    served.check(requests, serving.run())
    assert set(serving.finishes.values()) == {Finish.LENGTH}


def test_evicted_requests_go_on_where_they_were(one: TinyModel) -> None:
    """Too few blocks for all that were admitted: the youngest makes way and comes back."""
    requests = random_requests(8, seed=6, max_tokens=50)
    serving = Serving(one.engine(kv_blocks=24, max_model_tokens=120), reserve=_reserve_little)
    answers = serving.run(requests)
    assert serving.scheduler.num_evictions > 0
    one.check_all(requests, answers)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_steps_launched_ahead_of_a_stop_change_nothing(served: Served, ahead: int) -> None:
    """The host learns of a stop id `ahead` steps late; meanwhile the row was
    launched again, and its slot goes to another request.
    """
    model = served.model
    requests = [_stopping(model, request, 5 + request.request_id) for request in random_requests(12, seed=7)]
    serving = Serving(served.engine(slots=3), ahead=ahead)
    answers = serving.run(requests)
    for request in requests:
        expected = model.reference(request.prompt, 20)
        length = expected.index(request.sampling.stop_ids[0]) + 1
        model.check(request, answers[request.request_id], length)
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


def test_no_stop_id_comes_before_min_tokens(served: Served) -> None:
    """transformers' min_new_tokens with several EOS ids; the others in the batch go undisturbed."""
    prompt, model = np.arange(20, dtype=np.int32), served.model
    free = model.reference(prompt, 13)
    stops, minimum = (free[3], free[6], free[12]), 10
    request = Request(
        0, prompt, Sampling(max_tokens=40, min_tokens=minimum, stop_ids=(*stops, VOCABULARY + 5))
    )
    others = [Request(r.request_id + 1, r.prompt, r.sampling) for r in random_requests(3)]
    answers = Serving(served.engine()).run([request, *others])
    expected = generate(
        model.model, prompt, 40, min_new_tokens=minimum, eos_token_id=list(stops), pad_token_id=0
    )
    assert answers[0] == expected
    assert not set(answers[0][:minimum]) & set(stops)
    served.check(others, answers)


def test_a_sequence_ends_where_the_model_ends(one: TinyModel) -> None:
    request = Request(0, np.arange(40, dtype=np.int32), Sampling(max_tokens=50))
    serving = Serving(one.engine(max_model_tokens=64), ahead=1)
    one.check(request, serving.run([request])[0], 24)
    assert serving.finishes[0] == Finish.LENGTH


def test_a_step_of_chunks_that_sample_nothing_gives_no_tokens(served: Served) -> None:
    serving = Serving(served.engine(), token_budget=8, ahead=0)
    serving.submit(Request(0, np.arange(40, dtype=np.int32), Sampling(max_tokens=2)))
    serving.step()
    assert serving.answers[0] == []
    assert len(serving.run()[0]) == 2


def _stopping(tiny: TinyModel, request: Request, index: int) -> Request:
    """`request` with token `index` of its answer as stop id, and one that does not come."""
    expected = tiny.reference(request.prompt, 20)
    absent = next(token for token in range(VOCABULARY) if token not in expected)
    return Request(
        request.request_id, request.prompt, Sampling(max_tokens=50, stop_ids=(expected[index], absent))
    )


def _reserve_little(sequence: Sequence) -> int:
    return len(sequence.tokens) + 1
