"""Distributions of lengths, some of which were cut short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.prediction.lengths import LEVELS, distribution, observed, order, predict


def test_without_censoring_it_is_the_plain_distribution() -> None:
    prediction = observed(np.arange(1, 101, dtype=np.float32), np.ones(100, bool))
    assert prediction.mean == pytest.approx(50.5)
    assert prediction.quantiles.tolist() == [10, 25, 50, 75, 90, 99]


def test_kaplan_and_meiers_estimate_worked_by_hand() -> None:
    """1, 2+, 3, 4 (2 was cut short): S = 3/4, then 3/4 · 1/2, then 0."""
    below = distribution(np.array([True, False, True, True]), np.ones(4))
    assert below.tolist() == pytest.approx([0.25, 0.25, 0.625, 1.0])


def test_an_answer_that_was_cut_counts_for_what_is_longer() -> None:
    lengths = np.array([10, 20, 30, 40], np.float32)
    whole = observed(lengths, np.ones(4, bool))
    cut = observed(lengths, np.array([True, False, True, True]))
    assert cut.mean > whole.mean
    assert cut.quantiles[2] > whole.quantiles[2]


def test_where_all_were_cut_the_longest_is_all_that_is_known() -> None:
    prediction = observed(np.array([5, 9], np.float32), np.zeros(2, bool))
    assert prediction.mean == 9
    assert set(prediction.quantiles.tolist()) == {9}


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans(), st.floats(0.01, 3)), min_size=1, max_size=60))
def test_it_is_a_distribution_whatever_was_observed(rows: list[tuple[int, bool, float]]) -> None:
    lengths, ended = np.array([row[0] for row in rows], np.float32), np.array([row[1] for row in rows])
    places = order(lengths, ended)
    below = distribution(ended[places], np.array([row[2] for row in rows])[places])
    assert (np.diff(below) >= -1e-12).all()
    assert -1e-9 <= below[0] <= below[-1] <= 1 + 1e-9
    prediction = predict(lengths[places], below)
    assert (np.diff(prediction.quantiles) >= 0).all()
    assert lengths.min() - 1e-3 <= prediction.mean <= lengths.max() + 1e-3
    assert len(prediction.quantiles) == len(LEVELS)
