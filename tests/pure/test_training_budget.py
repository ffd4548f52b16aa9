"""Training gets what serving leaves, and no piece of it is longer than that."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from python_backends.engine.kv.padding import WITH_TILES, padded
from python_backends.finetuning.cursor import PackCursor
from python_backends.nouns.request import Ids
from python_backends.nouns.step import StepPlan
from python_backends.nouns.training import NO_LABEL, Pack, Window
from python_backends.scheduling.piece_time import NOTHING, PieceTime, loads, loss_loads
from python_backends.scheduling.step_time import StepTime
from python_backends.scheduling.training_budget import (
    GOAL,
    LEAST,
    MOST,
    MOST_LATE_S,
    Lateness,
    backward,
    forward,
    fused_window,
    loss,
    slack_s,
)

SIZES = partial(padded, row_multiple=WITH_TILES)


def zeros(count: int) -> Ids:
    return np.zeros(count, np.int32)


def decodes(rows: int, kv_tokens: int, prompt: int = 0) -> StepPlan:
    """A step in which `rows` decode, each with its part of the KV tokens; with a chunk of `prompt` tokens."""
    chunks = int(prompt > 0)
    starts = np.array([*[kv_tokens // max(1, rows) - 1] * rows, *[0] * chunks], np.int32)
    lengths = np.array([*[1] * rows, *[prompt] * chunks], np.int32)
    slots = np.arange(rows + chunks, dtype=np.int32)
    samples = np.ones(rows + chunks, np.bool_)
    return StepPlan(0, (), slots, zeros(rows + chunks), starts, lengths, rows, samples, zeros(prompt))


def step_time() -> StepTime:
    times = StepTime()
    times.coefficients = [0.010, 0.0005, 0.000001, 0.001, 0.0]
    return times


def piece_time(constant_s: float, token_s: float, most_tokens: int = 512) -> PieceTime:
    times = PieceTime()
    for tokens in 2 * (*range(1, 40), most_tokens):
        times.observe((1, tokens, 0.0), constant_s + token_s * tokens)
    return times


def pack(*lengths: int) -> Pack:
    bounds = (0, *np.cumsum(lengths).tolist())
    return Pack(zeros(bounds[-1]), zeros(bounds[-1]), bounds)


def test_a_step_and_the_training_before_it_take_no_longer_than_the_objective() -> None:
    plan = decodes(16, 4096)
    slack = slack_s(plan, step_time(), 0.045, 0.025)
    assert slack == pytest.approx(GOAL * 0.045 - 0.022096, rel=1e-6)
    assert slack_s(decodes(64, 32768), step_time(), 0.045, 0.025) == 0


def test_what_a_step_with_a_prompt_took_too_long_is_caught_up_before_training_goes_on() -> None:
    lateness, plan = Lateness(), decodes(16, 4096)
    assert lateness.seconds == 0
    for now_s in (0.0, 0.040, 0.190, 0.212):  # within the goal of 0.041; 0.109 too long; 0.019 caught up
        lateness.step_begins(plan, now_s, 0.041)
    assert lateness.seconds == pytest.approx(0.109 - 0.019)
    slacks = [slack_s(plan, step_time(), 0.045, 0.025, late_s) for late_s in (0.0, 0.010, lateness.seconds)]
    assert slacks[0] - slacks[1] == pytest.approx(0.010)
    assert slacks[2] == 0


def test_where_no_request_decodes_none_is_late() -> None:
    lateness, prompt = Lateness(), decodes(0, 1, prompt=100)
    lateness.step_begins(prompt, 0.0, 0.041)
    lateness.step_begins(decodes(2, 20), 1.0, 0.041)
    assert lateness.seconds == 0, "its step had only a prompt"
    lateness.step_begins(decodes(2, 20), 2.0, 0.041)
    assert lateness.seconds > 0
    lateness.step_begins(None, 2.1, 0.041)
    lateness.step_begins(decodes(2, 20), 9.0, 0.041)
    assert lateness.seconds == 0


def test_a_long_time_between_two_steps_is_not_caught_up() -> None:
    """The process stood still, or there was no job."""
    lateness = Lateness()
    for now_s in (0.0, 3600.0):
        lateness.step_begins(decodes(2, 20), now_s, 0.041)
    assert lateness.seconds == MOST_LATE_S


def test_an_idle_server_trains_for_as_long_as_a_new_request_may_wait() -> None:
    assert slack_s(None, step_time(), 0.045, 0.025) == 0.025


def test_prompts_go_first() -> None:
    assert slack_s(decodes(2, 20, prompt=5), step_time(), 10.0, 0.025) == 0


def test_windows_and_tiles_are_the_largest_that_fit() -> None:
    """The numbers of docs/finetuning.md: 19.8 ms are left of an objective of 45 ms."""
    slack = slack_s(decodes(16, 4096), step_time(), 0.045, 0.025)
    assert forward(slack, piece_time(0.0, 0.00025), pack(400), 0) == 64
    assert forward(0.025, piece_time(0.010, 0.00025), pack(400), 0) == 48
    tiles, tile_time, cursor = [], piece_time(0.0, 0.00005), PackCursor(100, 8)
    cursor.take_window(100)
    cursor.take_loss(100)
    while (tokens := backward(slack, tile_time, pack(100), cursor.open_tokens)) > 0:
        tiles.append(cursor.take_backward(tokens))
        slack -= tokens * 0.00005
    assert [(each.layer, each.last - each.first) for each in tiles][:4] == [
        (7, 100),
        (6, 100),
        (5, 100),
        (4, 64),
    ]


def test_a_window_in_a_step_is_the_largest_with_which_the_step_ends_in_time() -> None:
    """f(rows, window) of the same example: 75 tokens would be in time, and with 64 there are 80 rows."""
    windows = piece_time(0.0, 0.00025)
    slack = slack_s(decodes(16, 4096), step_time(), 0.045, 0.025)
    assert fused_window(slack, windows, pack(400), 0, 16, SIZES) == 64
    slack = slack_s(decodes(64, 32768), step_time(), 0.045, 0.025)
    assert fused_window(slack, windows, pack(400), 0, 64, SIZES) == 0
    assert fused_window(0.025 - 0.010, windows, pack(400), 0, 0, SIZES) == 56


@pytest.mark.parametrize("num_rows", [1, 3, 8, 16, 33, 256])
@pytest.mark.parametrize("left", [1, 15, 17, 100, 512, 4000])
def test_a_step_with_a_window_has_few_sizes(num_rows: int, left: int) -> None:
    windows = piece_time(0.0, 0.001)
    sizes = {
        fused_window(limit_s, windows, pack(left), 0, num_rows, SIZES)
        for limit_s in np.arange(0.0, 0.6, 0.001)
    }
    assert 0 in sizes
    assert min(sizes - {0}) <= 2 * LEAST
    assert max(sizes) == min(left, MOST) or left > MOST >= max(sizes) > MOST - 32
    assert len(sizes) < 30
    assert all(SIZES(num_rows + size) == num_rows + size for size in sizes - {0, left})


def test_windows_in_steps_grow_only_as_their_times_are_known() -> None:
    """And a step with a window tells nothing about those without."""
    times, sizes, whole = step_time(), [], pack(4000)
    plan = decodes(16, 4096)
    for _ in range(7):
        tokens = fused_window(10.0, times.window_time, whole, 0, 16, SIZES)
        sizes.append(tokens)
        with_window = plan.with_window(Window(0, tokens, loads(whole, 0, tokens)))
        for _ in range(3):
            times.observe(with_window, 0.0221 + 0.0001 * tokens)
    assert sizes == [16, 32, 64, 112, 208, 240, 240]
    assert times.coefficients == step_time().coefficients
    assert times.expected_s(with_window) == pytest.approx(0.0221 + 0.0240, rel=0.05)


def test_before_any_time_is_known_windows_in_steps_are_the_least() -> None:
    """Each step may have another number of rows: then the first window of each is not learned from."""
    windows, whole = PieceTime(), pack(4000)
    for num_rows, expected in ((8, 16), (16, 16), (24, 16), (24, 16), (24, 32)):
        tokens = fused_window(10.0, windows, whole, 0, num_rows, SIZES)
        assert tokens == expected
        windows.observe(loads(whole, 0, tokens), 0.0001 * tokens, num_rows)


def test_the_loss_is_computed_of_as_many_tokens_as_there_is_time_for() -> None:
    labels = np.where(np.arange(100) < 60, NO_LABEL, 1).astype(np.int32)
    half = Pack(zeros(100), labels, (0, 100))
    assert loss_loads(half, 50, 80) == (1, 30, 20.0)
    times = PieceTime()
    for _ in range(3):
        for first, last in ((0, 16), (0, 60), (50, 80), (60, 92), (70, 100)):
            load = loss_loads(half, first, last)
            times.observe(load, 0.001 + 0.001 * load[2])
    assert loss(0.0015, times, half, 0, 60) == 60
    assert loss(0.0200, times, half, 60, 100) == 16
    assert loss(0.0100, times, half, 60, 100) == 0


@pytest.mark.parametrize("left", [1, 3, 15, 16, 17, 100, 511, 512, 513, 4000])
@pytest.mark.parametrize("milliseconds", [0.0, 0.5, 1.0, 3.0, 8.0, 21.0, 400.0])
def test_no_piece_takes_longer_than_there_is_time(left: int, milliseconds: float) -> None:
    times, whole = piece_time(0.0005, 0.0001), pack(left)
    for tokens, first in (
        (forward(milliseconds / 1000, times, whole, 0), 0),
        (backward(milliseconds / 1000, times, whole, left), left),
    ):
        assert 0 <= tokens <= left
        if tokens:
            begin = first - tokens if first else 0
            assert times.seconds(loads(whole, begin, begin + tokens)) <= milliseconds / 1000
        else:
            least = min(LEAST, left)
            assert times.seconds((1, least, 0.0)) > milliseconds / 1000


def test_pieces_grow_only_as_their_times_are_known() -> None:
    times, whole = PieceTime(), pack(4000)
    sizes = []
    for _ in range(8):
        tokens = forward(10.0, times, whole, 0)
        for _ in range(2):
            times.observe(loads(whole, 0, tokens), 0.0001 * tokens)
        sizes.append(tokens)
    assert sizes == [16, 32, 64, 128, 256, 256, 256, 256]


def test_before_any_time_is_known_pieces_are_the_least() -> None:
    """The first piece of a size is not learned from; without times all sizes would seem to fit."""
    times, whole = PieceTime(), pack(4000)
    for expected in (16, 16, 32):
        assert forward(0.025, times, whole, 0) == expected
        times.observe(loads(whole, 0, 16), 0.002)


def test_the_times_of_pieces_are_learned() -> None:
    """Of tokens that attend to many others as well, with a margin for those that take longer."""
    random, times = np.random.default_rng(1), PieceTime()
    for _ in range(3000):
        load = (int(random.integers(1, 5)), int(random.integers(1, 300)), float(random.integers(0, 90_000)))
        truth = 0.001 + 0.0002 * load[0] + 0.00005 * load[1] + 1e-7 * load[2]
        times.observe(load, truth * random.uniform(0.9, 1.1))
    assert times._fit.coefficients == pytest.approx([0.001, 0.0002, 0.00005, 1e-7], rel=0.3)
    assert 1.0 < times.seconds((2, 100, 10_000)) / 0.0074 < 1.15


def test_pieces_that_take_far_less_than_expected_begin_learning_again() -> None:
    """The first ones were interrupted. Else pieces would not fit for minutes, because few are tried."""
    times = PieceTime()
    for seconds in (0.004, *[0.08] * 8):
        times.observe((1, 16, 0.0), seconds)
    for _ in range(2):
        times.observe((1, 16, 0.0), 0.004)
    assert times.seconds((1, 16, 0.0)) > 0.07
    times.observe((1, 16, 0.0), 0.004)
    assert times.seconds((1, 16, 0.0)) == pytest.approx(0.004, rel=0.01)
    assert forward(0.01, times, pack(4000), 0) in (16, 32)


def test_the_first_piece_of_a_size_tells_nothing() -> None:
    """A library generates code for it, and weights are packed."""
    times = PieceTime()
    for tokens in (16, 32, 64):
        times.observe((1, tokens, 0.0), 5.0)
        for _ in range(3):
            times.observe((1, tokens, 0.0), 0.001 * tokens)
    assert 0.06 < times.seconds((1, 64, 0.0)) < 0.14


def test_what_is_always_as_long_has_no_loads() -> None:
    times = PieceTime()
    for _ in range(100):
        times.observe(NOTHING, 0.004)
    assert times.seconds(NOTHING) == pytest.approx(0.004, rel=1e-3)


def test_the_loads_of_a_piece_count_the_tokens_that_are_attended_to() -> None:
    assert loads(pack(10, 20), 5, 14) == (2, 9, 5 * (5 + 2.5) + 4 * 2)
