"""Log-probabilities travel with their tokens: each goes out once, in order,
also across crashes, stop words and coalescing.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from python_backends.nouns.request import Feedback, Finish, LogProbs, TokenWindow
from python_backends.nouns.step import RowLogProbs, Tokens
from python_backends.streams.log_probs import StreamLogProbs, TokenLogProbs
from python_backends.text.detokenize.detokenizer import Piece, cum_log_prob, new_log_probs
from tests.support.stream_table import House, crash

ASKS = {"log_probs": True, "num_top_log_probs": 2}


def scores(*values: float, num_top: int = 3) -> LogProbs:
    """Of tokens with these log-probabilities: the top ids are 10, 11, …
    and the first of the top is the chosen one.
    """
    chosen = np.array(values, np.float32)
    places = np.arange(num_top, dtype=np.int32)
    return LogProbs(
        chosen, np.tile(10 + places, len(values)), (chosen[:, None] - places).astype(np.float32).ravel()
    )


class Asking(House):
    """A house in which requests 1 and 2 ask for log-probabilities and request 3 doesn't."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.table.instance_ready(0)

    def step(self, *rows: tuple[int, int, int, float | None], finish: Finish = Finish.RUNNING) -> None:
        """Rows of (request, epoch, index, log-probability or None)."""
        asking = [row for row, (*_, value) in enumerate(rows) if value is not None]
        values = scores(*(value for *_, value in rows if value is not None))
        columns = [[row[column] for row in rows] for column in range(3)]
        arrays = [
            np.array(column, kind)
            for column, kind in zip(columns, (np.int64, np.int32, np.int32), strict=True)
        ]
        tokens, finishes = np.array(columns[2], np.int32) + 50, np.full(len(rows), finish, np.uint8)
        self.table.tokens(
            Tokens(
                *arrays, tokens, finishes, RowLogProbs(np.array(asking, np.int32), values) if asking else None
            )
        )

    def chosen(self, number: int) -> list[float]:
        """As a reader of the windows puts them together."""
        return [
            float(value)
            for window in self.windows(number)
            if window.log_probs
            for value in window.log_probs.chosen
        ]


def test_each_goes_out_once_with_its_token_and_only_to_who_asked() -> None:
    house = Asking()
    house.accept(1, sampling=ASKS)
    house.accept(2, sampling=ASKS | {"num_top_log_probs": 0})
    house.accept(3)
    house.step((3, 0, 0, None), (1, 0, 0, -0.5), (2, 0, 0, -0.25))
    house.turn()
    house.step((2, 0, 1, -1.0), (1, 0, 1, -1.5), (3, 0, 1, None))
    house.step((1, 0, 2, -2.0), (2, 0, 2, -3.0), (3, 0, 2, None), finish=Finish.LENGTH)
    house.turn(ms=50)
    assert house.chosen(1) == [-0.5, -1.5, -2.0]
    assert house.chosen(2) == [-0.25, -1.0, -3.0]
    assert all(window.log_probs is None for window in house.windows(3))
    last = house.windows(1)[-1]
    assert last.log_probs is not None
    assert cum_log_prob(last, Piece(""), last.log_probs) == -4.0
    assert last.log_probs.top_ids.tolist() == [10, 11, 10, 11]
    assert last.log_probs.top.tolist() == [-1.5, -2.5, -2.0, -3.0]
    assert [window.log_probs.num_top for window in house.windows(2) if window.log_probs] == [0, 0]


def test_those_delivered_before_a_crash_are_kept_and_stale_ones_dropped() -> None:
    house = Asking()
    house.accept(1, sampling=ASKS, stream=False)
    house.step((1, 0, 0, -0.5))
    house.step((1, 0, 2, -9.0))  # too early, and lost with the instance
    crash(house)
    house.step((1, 0, 1, -8.0))
    house.step((1, 1, 1, -1.0))
    house.step((1, 1, 2, -2.0), finish=Finish.LENGTH)
    house.turn()
    assert house.chosen(1) == [-0.5, -1.0, -2.0]
    assert house.windows(1)[-1].cum_log_prob == 0.0


def test_a_stop_word_cuts_them_where_it_cuts_the_tokens() -> None:
    house = Asking()
    house.accept(1, sampling=ASKS, stream=False, stop_words=("x",))
    for index in range(5):
        house.step((1, 0, index, -float(index)))
    house.turn()
    house.table.feedback(Feedback(1, 5, stopped_at=3))
    house.turn()
    assert house.chosen(1) == [0.0, -1.0, -2.0]


@pytest.mark.parametrize("num_confirmed", [0, 12])
def test_the_sum_ends_at_a_stop_word_in_a_window_that_is_not_confirmed(num_confirmed: int) -> None:
    """The answer has ended by its length before the scheduler model hears of the stop word."""
    house = Asking()
    house.accept(1, sampling=ASKS, stop_words=("x",))
    for index in range(14):
        house.step((1, 0, index, -1.0))
    house.turn()
    if num_confirmed:
        house.table.feedback(Feedback(1, num_confirmed))
    house.step((1, 0, 14, -1.0), finish=Finish.LENGTH)
    house.turn(ms=50)
    last = house.windows(1)[-1]
    assert (last.start > 0, last.num_sent) == (num_confirmed > 0, 14)
    for stopped_at, total in ((0, -15.0), (13, -13.0), (14, -14.0), (15, -15.0)):
        piece = Piece("", stopped_at)
        new = new_log_probs(last, piece)
        assert new is not None
        assert cum_log_prob(last, piece, new) == total


def test_an_engine_that_reports_none_gives_nan_in_their_place() -> None:
    house = Asking()
    house.accept(1, sampling=ASKS)
    house.step((1, 0, 0, None), finish=Finish.STOP)
    house.turn()
    window = house.windows(1)[-1]
    assert window.log_probs is not None
    assert np.isnan(window.log_probs.chosen).all()
    assert window.log_probs.top_ids.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("stopped_at", "num_sent", "left"), [(0, 4, 3), (5, 4, 1), (7, 4, 3), (4, 4, 0), (2, 4, 0), (1, 0, 1)]
)
def test_a_response_brings_those_up_to_the_stop(stopped_at: int, num_sent: int, left: int) -> None:
    window = TokenWindow(1, np.arange(7, dtype=np.int32), num_sent=num_sent, log_probs=scores(-1, -2, -3))
    out = new_log_probs(window, Piece("", stopped_at))
    assert out is not None
    assert out.chosen.tolist() == [-1, -2, -3][:left]
    assert len(out.top) == len(out.top_ids) == 3 * left


def test_a_step_keeps_them_for_the_rows_that_are_still_there() -> None:
    rows = RowLogProbs(np.array([1, 2, 4], np.int32), scores(-1, -2, -3, num_top=2))
    kept = rows.kept(np.array([True, False, True, False, True, True]))
    assert kept.rows.tolist() == [1, 2]
    assert kept.values.chosen.tolist() == [-2, -3]
    assert kept.values.top.tolist() == [-2, -3, -3, -4]
    assert rows.kept(np.zeros(6, np.bool_)).values.num_top == 0


def test_log_probabilities_of_long_answers_take_little_memory() -> None:
    kept = StreamLogProbs(num_top=1)
    tracemalloc.start()
    try:
        for number in range(2000):
            kept.append(TokenLogProbs(-0.5, np.array([number], np.int32), np.array([-0.5], np.float32)))
        assert tracemalloc.get_traced_memory()[0] < 2000 * 30
    finally:
        tracemalloc.stop()
    kept.cut(1000)
    since = kept.since(998)
    assert (since.chosen.tolist(), since.top_ids.tolist()) == ([-0.5, -0.5], [998, 999])
    assert kept.sum(1000) == -500
