"""Distributions of lengths, some of which were cut short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.prediction.lengths import LEVELS, distribution, observed, order, predict


def test_without_censoring_it_is_the_plain_distribution() -> None:
    prediction = observed(np.arange(1, 101, dtype=np.float32), np.ones(100, bool), 2000)
    assert prediction.mean == pytest.approx(50.5)
    assert prediction.quantiles.tolist() == [10, 25, 50, 75, 90, 99]


def test_kaplan_and_meiers_estimate_worked_by_hand() -> None:
    """1, 2+, 3, 4 (2 was cut short): S = 3/4, then 3/4 · 1/2, then 0."""
    below = distribution(np.array([True, False, True, True]), np.ones(4))
    assert below.tolist() == pytest.approx([0.25, 0.25, 0.625, 1.0])


def test_an_answer_that_was_cut_counts_for_what_is_longer() -> None:
    lengths = np.array([10, 20, 30, 40], np.float32)
    whole = observed(lengths, np.ones(4, bool), 50)
    cut = observed(lengths, np.array([True, False, True, True]), 50)
    assert cut.mean > whole.mean
    assert cut.quantiles[2] > whole.quantiles[2]


def test_where_all_were_cut_the_next_may_have_as_many_tokens_as_it_asks_for() -> None:
    """Somewhere between the longest and those; if these are the same, it is that."""
    lengths, ended = np.array([5, 9], np.float32), np.zeros(2, bool)
    same, more, less = (observed(lengths, ended, most) for most in (9, 900, 4))
    assert (same.mean, set(same.quantiles.tolist())) == (9, {9})
    assert (more.mean, set(more.quantiles.tolist())) == (pytest.approx(90), {900})
    assert (less.mean, set(less.quantiles.tolist())) == (4, {4})


def test_one_that_was_cut_changes_only_the_quantiles_that_it_may_reach() -> None:
    """The longest of a hundred was cut, and the next may have a whole context: its mean does not become a
    share of that.
    """
    lengths, ended = np.arange(1, 101, dtype=np.float32), np.arange(1, 101) < 100
    prediction = observed(lengths, ended, 100_000)
    assert prediction.quantiles.tolist() == [10, 25, 50, 75, 90, 99]
    assert prediction.mean == pytest.approx(49.5 + 0.01 * 3162, abs=0.1)
    shorter = observed(lengths, np.arange(1, 101) < 95, 100_000)
    assert shorter.quantiles.tolist() == [10, 25, 50, 75, 90, 100_000]


def test_no_length_is_above_what_the_request_may_have() -> None:
    prediction = observed(np.arange(1, 101, dtype=np.float32), np.ones(100, bool), 60)
    assert prediction.quantiles.tolist() == [10, 25, 50, 60, 60, 60]
    assert prediction.mean == pytest.approx((60 * 61 / 2 + 40 * 60) / 100)


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans(), st.floats(0.01, 3)), min_size=1, max_size=60))
def test_it_is_a_distribution_whatever_was_observed(rows: list[tuple[int, bool, float]]) -> None:
    lengths, ended = np.array([row[0] for row in rows], np.float32), np.array([row[1] for row in rows])
    places = order(lengths, ended)
    below = distribution(ended[places], np.array([row[2] for row in rows])[places])
    assert (np.diff(below) >= -1e-12).all()
    assert -1e-9 <= below[0] <= below[-1] <= 1 + 1e-9
    prediction = predict(lengths[places], below, lengths.max())
    assert (np.diff(prediction.quantiles) >= 0).all()
    assert lengths.min() - 1e-3 <= prediction.mean <= lengths.max() + 1e-3
    assert len(prediction.quantiles) == len(LEVELS)
