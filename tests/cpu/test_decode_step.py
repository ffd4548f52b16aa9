"""Decode steps of fixed shape, not captured: what a GPU replays, run on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.decode_step import bucket_sizes
from python_backends.nouns.request import ModelLimits
from tests.support.tiny_models import Serving, TinyModel, random_requests


@pytest.mark.parametrize("name", ["llama_grouped", "gemma2", "mistral", "gpt_neox"])
def test_padded_steps_give_the_tokens_of_transformers(tiny: Callable[[str], TinyModel], name: str) -> None:
    """Slots fill and empty, so that all buckets come, with and without rows of padding."""
    model = tiny(name)
    requests = random_requests(7, seed=3)
    serving = Serving(model.engine(slots=5, cuda_graphs="eager"))
    for request in requests:
        serving.submit(request)
    answers = serving.run()
    model.check_all(requests, answers)


def test_rows_that_ask_for_more_than_the_best_token_are_chosen_behind_the_step(one: TinyModel) -> None:
    """Seeds, penalties, bad words and log-probabilities, some rows
    beside plain ones: all as without fixed shapes.
    """
    asking = {
        "temperature": 0.8,
        "repetition_penalty": 1.3,
        "bad_words": ((3, 4),),
        "logit_bias": ((5, -1.5), (6, 2.0)),
        "log_probs": True,
        "num_top_log_probs": 2,
    }
    plain, others = random_requests(3, seed=1), random_requests(3, seed=2, **asking)
    requests = [
        *plain,
        *(
            type(request)(10 + index, request.prompt, request.sampling)
            for index, request in enumerate(others)
        ),
    ]
    answers = [Serving(one.engine(slots=6, cuda_graphs=how)).run(requests) for how in ("off", "eager")]
    assert answers[0] == answers[1]


def test_stop_ids_end_a_row_and_its_step_changes_nothing_of_the_dead_slot(one: TinyModel) -> None:
    request = random_requests(1, seed=4)[0]
    whole = Serving(one.engine()).run([request])[request.request_id]
    stopping = random_requests(1, seed=4, stop_ids=(whole[5], 1, 2, 5))[0]
    engine = one.engine(slots=3, cuda_graphs="eager")
    serving = Serving(engine)
    assert (
        serving.run([*random_requests(3, seed=9)[1:], stopping])[stopping.request_id]
        == whole[: whole.index(whole[5]) + 1]
    )
    dead = torch.tensor([engine.state.dead_slot])
    assert [int(value) for value in torch.cat(engine.state.decode_inputs(dead))] == [0, 0]


def test_the_dead_slot_reads_and_writes_behind_all_blocks() -> None:
    state = SlotState(ModelLimits(40, 100, 4, 12, 4), torch.device("cpu"))
    assert state.dead_slot == 4
    assert state.table[4].tolist() == [12] * 10
    assert [
        column.tolist() for column in state.append_greedy(torch.tensor([4, 4]), torch.tensor([7, 9]))
    ] == [[0, 0], [0, 0]]


def test_a_steady_step_is_sent_nothing(one: TinyModel) -> None:
    """The slots of a bucket are written only when others stand in it."""
    engine = one.engine(slots=4, cuda_graphs="eager")
    steps = engine._launcher.decode_steps
    assert steps is not None
    bucket = steps.bucket(np.array([2, 0, 1], np.int32))
    assert bucket.slots.tolist() == [2, 0, 1, 4]
    bucket.slots.fill_(3)
    assert steps.bucket(np.array([2, 0, 1], np.int32)).slots.tolist() == [3, 3, 3, 3]
    assert steps.bucket(np.array([1], np.int32)).slots.tolist() == [1]


def test_buckets_are_powers_of_two_and_all_slots() -> None:
    assert [bucket_sizes(count) for count in (1, 2, 5, 64)] == [
        [1],
        [1, 2],
        [1, 2, 4, 5],
        [1, 2, 4, 8, 16, 32, 64],
    ]
