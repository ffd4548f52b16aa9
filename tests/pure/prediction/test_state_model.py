"""Lengths predicted from hidden states: what is learned, with answers that were cut, and how honest it is."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.nouns.request import QUANTILE_LEVELS, Floats
from python_backends.prediction.ridge import fit
from python_backends.prediction.state_model import KnownStates, StateModel, learned

HIDDEN, LAYER, MOST = 64, 18, 1_000_000
NINETY, HALF = QUANTILE_LEVELS.index(0.9), QUANTILE_LEVELS.index(0.5)


def answers(count: int, seed: int = 0) -> KnownStates:
    """Of log length 4 + the sum of three numbers of the state, and noise of 0.3. One number is large and
    always nearly the same, as published models have it.
    """
    generator = np.random.default_rng(seed)
    states = generator.normal(size=(count, HIDDEN)).astype(np.float32)
    states[:, 7] = 9000 + states[:, 7]
    logs = 4 + 0.7 * states[:, :3].sum(axis=1) + generator.normal(scale=0.3, size=count)
    return KnownStates(LAYER, states, np.exp(logs).round().clip(1).astype(np.float32), np.ones(count, bool))


def said(model: StateModel, states: Floats, most: int = MOST) -> np.ndarray:
    """[n, levels]"""
    found = [model.predict(state, LAYER, most) for state in states]
    assert all(each is not None and each.is_sane for each in found)
    return np.stack([each.quantiles for each in found if each is not None])


def test_the_median_is_near_the_length_and_the_quantiles_cover_what_they_promise() -> None:
    model, asked = learned(answers(500)), answers(2000, seed=1)
    quantiles = said(model, asked.states)
    ratios = np.abs(np.log(quantiles[:, HALF]) - np.log(asked.lengths))
    assert np.median(ratios) < 0.3, "noise alone makes 0.2"
    covered = (asked.lengths[:, None] <= quantiles).mean(axis=0)
    assert covered == pytest.approx(QUANTILE_LEVELS, abs=0.06)


def test_answers_that_were_cut_are_not_taken_for_short_ones() -> None:
    whole, asked = answers(800), answers(2000, seed=1)
    limit = np.random.default_rng(2).choice([60, 120, 5000], 800)
    cut = KnownStates(LAYER, whole.states, np.minimum(whole.lengths, limit), whole.lengths <= limit)
    honest = said(learned(cut), asked.states)
    naive = said(learned(KnownStates(LAYER, cut.states, cut.lengths, np.ones(800, bool))), asked.states)
    covered, covered_naive = ((asked.lengths <= each[:, NINETY]).mean() for each in (honest, naive))
    assert covered == pytest.approx(0.9, abs=0.06)
    assert covered_naive < covered - 0.05


def test_each_row_is_left_out_as_if_it_had_not_been_there() -> None:
    known = answers(80)
    logs = np.log(known.lengths.astype(np.float64))
    whole = fit(known.states, logs, known.ended)
    others = np.arange(80) != 5
    without = fit(known.states[others], logs[others], known.ended[others])
    alone = float(known.states[5] @ without.weights + without.offset)
    assert whole.left_out[5] == pytest.approx(alone, abs=0.15)
    assert abs(logs[5] - whole.left_out[5]) > abs(logs[5] - (known.states[5] @ whole.weights + whole.offset))


def test_the_mean_and_the_quantiles_keep_to_the_most_tokens_of_the_request() -> None:
    known = answers(300)
    found = learned(known).predict(known.states[0], LAYER, 3)
    assert found is not None
    assert 1 <= found.mean <= 3 + 1e-9
    assert found.quantiles.max() <= 3


def test_what_was_not_learned_from_is_not_predicted_from() -> None:
    known = answers(100)
    model = learned(known)
    assert model.predict(known.states[0], LAYER + 1, MOST) is None
    assert model.predict(known.states[0][:-1], LAYER, MOST) is None
    assert model.predict(np.full(HIDDEN, np.nan, np.float32), LAYER, MOST) is None
    far = model.predict(np.full(HIDDEN, 1e30, np.float32), LAYER, MOST)
    assert far is None or far.is_sane


def test_few_answers_that_all_have_one_length_are_no_trouble() -> None:
    known = answers(50)
    model = learned(KnownStates(LAYER, known.states, np.full(50, 7, np.float32), known.ended))
    assert said(model, known.states) == pytest.approx(7, rel=1e-6)


def test_what_is_still_to_come_is_the_median_of_the_answers_that_have_lasted_so_long() -> None:
    lengths = np.arange(1.0, 101.0)
    model = StateModel(LAYER, np.zeros(HIDDEN), 0.0, np.full(100, 2.0), lengths, np.ones(100, bool))
    assert model.to_come(2.0, 0) == 50
    assert model.to_come(2.0, 60) == 20
    assert model.to_come(2.0, 99) == 1
    assert model.to_come(2.0, 200) == 50, "longer than all of them"
    cut = StateModel(LAYER, model.weights, 0.0, model.logs, lengths, lengths > 80)
    assert cut.to_come(2.0, 60) == 30, "those that were cut would have been longer"
