"""Log-probabilities of a prompt go out once, whole, with the first tokens of the answer, also across
crashes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from python_backends.nouns.request import Finish, LogProbs
from python_backends.nouns.step import PromptLogProbs
from tests.support.stream_table import House, crash

ASKS: dict[str, Any] = {
    "wants_prompt_log_probs": True,
    "sampling": {"log_probs": True, "num_top_log_probs": 1},
}


def scores(*rows: tuple[int, int, int, float]) -> PromptLogProbs:
    """Rows of (request, epoch, place in the prompt, log-probability), with two of the top, 10 and 11."""
    columns = list(zip(*rows, strict=True))
    arrays = [
        np.array(column, kind)
        for column, kind in zip(columns[:3], (np.int64, np.int32, np.int32), strict=True)
    ]
    chosen = np.array(columns[3], np.float32)
    top = np.stack([chosen + 1, chosen], 1).ravel()
    return PromptLogProbs(*arrays, LogProbs(chosen, np.tile(np.array([10, 11], np.int32), len(rows)), top))


@pytest.fixture
def house() -> House:
    """A prompt has the tokens 0, 1 and 2."""
    made = House()
    made.table.instance_ready(0)
    return made


def of_prompt(house: House, number: int) -> list[tuple[int, list[float], list[int], list[float]]]:
    """Of each window that has them: its place among all of them, and theirs."""
    found = []
    for place, window in enumerate(house.windows(number)):
        values = window.prompt_log_probs
        assert (values is None) == (window.prompt_ids is None)
        if values is not None and window.prompt_ids is not None:
            assert window.prompt_ids.tolist() == [0, 1, 2]
            found.append((place, values.chosen.tolist(), values.top_ids.tolist(), values.top.tolist()))
    return found


def test_they_come_with_the_first_tokens_of_a_stream_and_to_nobody_else(house: House) -> None:
    """Chunks bring them in parts, and several requests share a step."""
    house.accept(1, **ASKS)
    house.accept(2)
    house.accept(3, **ASKS, echo="abc")
    house.table.prompt_log_probs(scores((1, 0, 1, -0.5), (3, 0, 1, -1.0), (3, 0, 2, -2.0)))
    house.table.prompt_log_probs(scores((1, 0, 2, -1.5)))
    house.turn()
    assert not house.windows(1)
    for index in range(2):
        house.tokens(*((number, 0, index, 50, Finish.RUNNING) for number in (1, 2, 3)))
        house.turn(ms=50)
    assert of_prompt(house, 1) == [(0, [-0.5, -1.5], [10, 10], [0.5, -0.5])]
    assert of_prompt(house, 2) == []
    assert of_prompt(house, 3) == [(0, [-1.0, -2.0], [10, 10], [0.0, -1.0])]
    assert [window.echo for window in house.windows(3)] == ["abc", ""]


def test_an_answer_in_one_piece_has_them_at_its_end(house: House) -> None:
    house.accept(1, stream=False, **ASKS)
    house.table.prompt_log_probs(scores((1, 0, 1, -0.5), (1, 0, 2, -1.5)))
    house.tokens((1, 0, 0, 50, Finish.RUNNING), (1, 0, 1, 51, Finish.STOP))
    house.turn()
    assert of_prompt(house, 1) == [(len(house.windows(1)) - 1, [-0.5, -1.5], [10, 10], [0.5, -0.5])]


def test_after_a_crash_within_the_prompt_they_are_those_of_the_next_life(house: House) -> None:
    house.accept(1, **ASKS)
    house.table.prompt_log_probs(scores((1, 0, 1, -0.5)))
    crash(house)
    house.table.prompt_log_probs(scores((1, 0, 2, -9.0)))  # late, of the life before
    house.table.prompt_log_probs(scores((1, 1, 1, -0.5), (1, 1, 2, -1.5)))
    house.tokens((1, 1, 0, 50, Finish.LENGTH))
    house.turn()
    assert [values for _, values, *_ in of_prompt(house, 1)] == [[-0.5, -1.5]]


def test_after_a_crash_within_the_answer_they_are_kept(house: House) -> None:
    house.accept(1, stream=False, **ASKS)
    house.table.prompt_log_probs(scores((1, 0, 1, -0.5), (1, 0, 2, -1.5)))
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    crash(house)
    house.tokens((1, 1, 1, 51, Finish.LENGTH))
    house.turn()
    assert [values for _, values, *_ in of_prompt(house, 1)] == [[-0.5, -1.5]]


def test_an_answer_that_ends_within_its_prompt_has_none(house: House) -> None:
    house.accept(1, deadline_ns=house.now_ns + 1_000_000, **ASKS)
    house.table.prompt_log_probs(scores((1, 0, 1, -0.5)))
    house.turn(ms=2)
    assert [window.finish for window in house.windows(1)] == [Finish.DEADLINE]
    assert of_prompt(house, 1) == []


def test_those_of_a_request_that_has_left_are_dropped(house: House) -> None:
    house.accept(1)
    house.table.prompt_log_probs(scores((1, 0, 1, -0.5), (7, 0, 1, -0.5)))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.STOP])
def test_a_dropped_answer_has_the_prompt_and_no_token(house: House, stream: bool, finish: Finish) -> None:
    house.accept(1, stream=stream, max_tokens=1, drops_answer=True, echo="abc", **ASKS)
    house.table.prompt_log_probs(scores((1, 0, 1, -0.5), (1, 0, 2, -1.5)))
    house.tokens((1, 0, 0, 50, finish))
    house.turn()
    [window] = [each for each in house.windows(1) if each.finish != Finish.RUNNING]
    assert (window.tokens.tolist(), window.finish, window.echo) == ([], Finish.LENGTH, "abc")
    assert window.log_probs is not None
    assert window.log_probs.chosen.tolist() == []
    assert [values for _, values, *_ in of_prompt(house, 1)] == [[-0.5, -1.5]]
    assert len(house.table) == 0
    assert house.cancelled == []
