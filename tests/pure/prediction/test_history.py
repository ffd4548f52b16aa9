"""The prior: what recent answers say of the next."""

from __future__ import annotations

import pytest

from python_backends.prediction.history import MIN_ANSWERS, Answered, AnswerHistory


def test_without_answers_nothing_is_known() -> None:
    assert AnswerHistory().predict(1, 10, 500) is None
    assert AnswerHistory([Answered(1, 10, 20, True)] * (MIN_ANSWERS - 1)).predict(1, 10, 500) is None


def test_it_goes_by_the_instruction_and_by_all_answers_where_that_is_new() -> None:
    history = AnswerHistory([Answered(1, 10, 20, True)] * 20 + [Answered(2, 10, 200, True)] * 20)
    known, new = history.predict(1, 10, 500), history.predict(3, 10, 500)
    assert known is not None
    assert new is not None
    assert known.mean == pytest.approx(20)
    assert new.mean == pytest.approx(110)
    assert new.quantiles[[0, 4]].tolist() == [20, 200]


def test_it_goes_by_the_inputs_that_are_nearest_in_length() -> None:
    history = AnswerHistory([Answered(1, n, 2 * n, True) for n in range(1, 501)])
    for length in (100, 200, 400):
        found = history.predict(1, length, 2000)
        assert found is not None
        assert abs(found.mean - 2 * length) < 0.1 * 2 * length


def test_answers_that_were_all_cut_early_say_nothing_of_one_that_may_be_long() -> None:
    found = AnswerHistory([Answered(1, 10, 16, False)] * 20).predict(1, 10, 2048)
    assert found is not None
    assert set(found.quantiles.tolist()) == {2048}


def test_answers_that_were_cut_count_as_at_least_so_long() -> None:
    history = AnswerHistory([Answered(1, 10, 100, True)] * 10 + [Answered(1, 10, 50, False)] * 10)
    found = history.predict(1, 10, 500)
    assert found is not None
    assert found.mean == pytest.approx(100)
