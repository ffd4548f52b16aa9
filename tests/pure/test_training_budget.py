"""No piece of training is longer than the time that serving leaves."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.finetuning.pieces import Kind, Piece
from python_backends.nouns.request import Ids
from python_backends.nouns.training import NO_LABEL, Pack
from python_backends.scheduling.piece_time import NOTHING, PieceTime, loads, loss_loads
from python_backends.scheduling.training_budget import LEAST, most_tokens


def zeros(count: int) -> Ids:
    return np.zeros(count, np.int32)


def fitting(seconds: float, times: PieceTime, kind: Kind, pack: Pack, first: int, last: int) -> int:
    """How many of tokens [first, last) are computed next."""
    return most_tokens(seconds, times, last - first, Piece(kind, pack, first, last).loads, 256)


def forward(seconds: float, times: PieceTime, pack: Pack) -> int:
    return fitting(seconds, times, Kind.FORWARD, pack, 0, len(pack.tokens))


def backward(seconds: float, times: PieceTime, pack: Pack, last: int) -> int:
    return fitting(seconds, times, Kind.BACKWARD, pack, 0, last)


def piece_time(constant_s: float, token_s: float, most_tokens: int = 512) -> PieceTime:
    times = PieceTime()
    for tokens in 2 * (*range(1, 40), most_tokens):
        times.observe((1, tokens, 0.0), constant_s + token_s * tokens)
    return times


def pack(*lengths: int) -> Pack:
    bounds = (0, *np.cumsum(lengths).tolist())
    return Pack(zeros(bounds[-1]), zeros(bounds[-1]), bounds)


def test_tiles_are_the_largest_that_fit() -> None:
    """The numbers of docs/finetuning.md: 19.8 ms are left of an objective of 45 ms."""
    slack = 0.93 * 0.045 - 0.022096
    assert forward(slack, piece_time(0.0, 0.00025), pack(400)) == 64
    assert forward(0.025, piece_time(0.010, 0.00025), pack(400)) == 48
    tiles, times, last = [], piece_time(0.0, 0.00005), 100
    while (tokens := backward(slack, times, pack(100), last)) > 0:
        tiles.append(tokens)
        slack -= tokens * 0.00005
        last = last - tokens or 100
    assert tiles[:4] == [100, 100, 100, 64]


def test_the_loss_is_computed_of_as_many_tokens_as_there_is_time_for() -> None:
    labels = np.where(np.arange(100) < 60, NO_LABEL, 1).astype(np.int32)
    half = Pack(zeros(100), labels, (0, 100))
    assert loss_loads(half, 50, 80) == (1, 30, 20.0)
    times = PieceTime()
    for _ in range(3):
        for first, last in ((0, 16), (0, 60), (50, 80), (60, 92), (70, 100)):
            load = loss_loads(half, first, last)
            times.observe(load, 0.001 + 0.001 * load[2])
    assert fitting(0.0015, times, Kind.LOSS, half, 0, 60) == 60
    assert fitting(0.0200, times, Kind.LOSS, half, 60, 100) == 16
    assert fitting(0.0100, times, Kind.LOSS, half, 60, 100) == 0


@pytest.mark.parametrize("left", [1, 3, 15, 16, 17, 100, 511, 512, 513, 4000])
@pytest.mark.parametrize("milliseconds", [0.0, 0.5, 1.0, 3.0, 8.0, 21.0, 400.0])
def test_no_piece_takes_longer_than_there_is_time(left: int, milliseconds: float) -> None:
    times, whole = piece_time(0.0005, 0.0001), pack(left)
    for tokens, first in (
        (forward(milliseconds / 1000, times, whole), 0),
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
        tokens = forward(10.0, times, whole)
        for _ in range(2):
            times.observe(loads(whole, 0, tokens), 0.0001 * tokens)
        sizes.append(tokens)
    assert sizes == [16, 32, 64, 128, 256, 256, 256, 256]


def test_before_any_time_is_known_pieces_are_the_least() -> None:
    """The first piece of a size is not learned from; without times all sizes would seem to fit."""
    times, whole = PieceTime(), pack(4000)
    for expected in (16, 16, 32):
        assert forward(0.025, times, whole) == expected
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
    assert forward(0.01, times, pack(4000)) in (16, 32)


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
