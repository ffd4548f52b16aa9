"""Lengths predicted from hidden states: what is learned, with answers that were cut, and how honest it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from commands.logged_answers import rank_correlation
from python_backends.nouns.request import QUANTILE_LEVELS, Floats
from python_backends.prediction.ridge import Decomposed, fit
from python_backends.prediction.state_model import (
    CENTRES,
    KnownStates,
    StateModel,
    learned,
    learned_by_distance,
)

Learn = Callable[[KnownStates], StateModel]

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


def by_distance(known: KnownStates) -> StateModel:
    return learned_by_distance(known)[0]


BOTH = pytest.mark.parametrize("learn", [learned, by_distance])


def said(model: StateModel, states: Floats, most: int = MOST) -> np.ndarray:
    """[n, levels]"""
    found = [model.predict(state, LAYER, most) for state in states]
    assert all(each is not None and each.is_sane for each in found)
    return np.stack([each.quantiles for each in found if each is not None])


@BOTH
def test_the_median_is_near_the_length_and_the_quantiles_cover_what_they_promise(learn: Learn) -> None:
    model, asked = learn(answers(500)), answers(2000, seed=1)
    quantiles = said(model, asked.states)
    ratios = np.abs(np.log(quantiles[:, HALF]) - np.log(asked.lengths))
    assert np.median(ratios) < 0.3, "noise alone makes 0.2"
    covered = (asked.lengths[:, None] <= quantiles).mean(axis=0)
    assert covered == pytest.approx(QUANTILE_LEVELS, abs=0.06)


@BOTH
def test_quantiles_cover_what_they_promise_where_all_inputs_are_the_same(learn: Learn) -> None:
    known, asked = noise(400, seed=3), noise(4000, seed=4)
    same = np.repeat(known.states[:1], 400, axis=0)
    quantiles = said(learn(KnownStates(LAYER, same, known.lengths, known.ended)), same[:1])
    assert (asked.lengths[:, None] <= quantiles).mean(axis=0) == pytest.approx(QUANTILE_LEVELS, abs=0.08)


@BOTH
def test_quantiles_cover_what_they_promise_where_inputs_say_nothing(learn: Learn) -> None:
    known, asked = noise(400, seed=3), noise(600, seed=4)
    covered = (asked.lengths[:, None] <= said(learn(known), asked.states)).mean(axis=0)
    assert covered == pytest.approx(QUANTILE_LEVELS, abs=0.08)


def noise(count: int, seed: int) -> KnownStates:
    """States that say nothing of the lengths."""
    generator = np.random.default_rng(seed)
    lengths = np.exp(5 + generator.normal(0, 0.6, count))
    states = generator.normal(size=(count, HIDDEN)).astype(np.float32)
    return KnownStates(LAYER, states, lengths.round().astype(np.float32), np.ones(count, bool))


def test_answers_to_one_prompt_do_not_make_quantiles_of_other_prompts_narrow() -> None:
    """Four to each, one after the other. What is the same in them, their states say of no other prompt."""
    generator = np.random.default_rng(5)

    def drawn(prompts: int, answers_each: int) -> KnownStates:
        states = generator.normal(size=(prompts, HIDDEN)).astype(np.float32)
        logs = np.repeat(5 + generator.normal(0, 0.8, prompts), answers_each)
        lengths = np.exp(logs + generator.normal(0, 0.4, len(logs))).round().clip(1).astype(np.float32)
        return KnownStates(LAYER, np.repeat(states, answers_each, axis=0), lengths, np.ones(len(logs), bool))

    model, asked = by_distance(drawn(125, 4)), drawn(600, 1)
    covered = (asked.lengths <= said(model, asked.states)[:, NINETY]).mean()
    assert covered > 0.85


@BOTH
def test_answers_that_were_all_cut_early_say_nothing_of_one_that_may_be_long(learn: Learn) -> None:
    known = answers(200)
    model = learn(KnownStates(LAYER, known.states, np.full(200, 16, np.float32), np.zeros(200, bool)))
    found = [model.predict(known.states[0], LAYER, most) for most in (16, 2048)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].mean == pytest.approx(16)
    assert set(found[0].quantiles.tolist()) == {16}
    assert set(found[1].quantiles.tolist()) == {2048}
    assert 16 < found[1].mean < 2048


@BOTH
def test_answers_that_were_cut_are_not_taken_for_short_ones(learn: Learn) -> None:
    whole, asked = answers(800), answers(2000, seed=1)
    limit = np.random.default_rng(2).choice([60, 120, 5000], 800)
    cut = KnownStates(LAYER, whole.states, np.minimum(whole.lengths, limit), whole.lengths <= limit)
    honest = said(learn(cut), asked.states)
    naive = said(learn(KnownStates(LAYER, cut.states, cut.lengths, np.ones(800, bool))), asked.states)
    covered, covered_naive = ((asked.lengths <= each[:, NINETY]).mean() for each in (honest, naive))
    assert covered == pytest.approx(0.9, abs=0.06)
    assert covered_naive < covered - 0.05


def test_each_fold_is_left_out_as_if_it_had_not_been_there() -> None:
    """Of 80 rows, eight next to each other."""
    known = answers(80)
    logs = np.log(known.lengths.astype(np.float64))
    whole = fit(Decomposed.of(known.states), logs, known.ended)
    others = np.arange(80) >= 8
    without = fit(Decomposed.of(known.states[others]), logs[others], known.ended[others])
    alone = float(known.states[5] @ without.weights + without.offset)
    assert whole.left_out[5] == pytest.approx(alone, abs=0.15)
    assert abs(logs[5] - whole.left_out[5]) > abs(logs[5] - (known.states[5] @ whole.weights + whole.offset))


@BOTH
def test_the_mean_and_the_quantiles_keep_to_the_most_tokens_of_the_request(learn: Learn) -> None:
    known = answers(300)
    found = learn(known).predict(known.states[0], LAYER, 3)
    assert found is not None
    assert 1 <= found.mean <= 3 + 1e-9
    assert found.quantiles.max() <= 3


@BOTH
def test_what_was_not_learned_from_is_not_predicted_from(learn: Learn) -> None:
    known = answers(100)
    model = learn(known)
    assert model.predict(known.states[0], LAYER + 1, MOST) is None
    assert model.predict(known.states[0][:-1], LAYER, MOST) is None
    assert model.predict(np.full(HIDDEN, np.nan, np.float32), LAYER, MOST) is None
    far = model.predict(np.full(HIDDEN, 1e30, np.float32), LAYER, MOST)
    assert far is None or far.is_sane


@BOTH
def test_few_answers_that_all_have_one_length_are_no_trouble(learn: Learn) -> None:
    known = answers(50)
    model = learn(KnownStates(LAYER, known.states, np.full(50, 7, np.float32), known.ended))
    assert said(model, known.states) == pytest.approx(7, rel=1e-6)


def test_states_that_are_all_the_same_say_what_is_always_so() -> None:
    known = answers(100)
    same = np.repeat(known.states[:1], 100, axis=0)
    model = by_distance(KnownStates(LAYER, same, known.lengths, known.ended))
    assert said(model, same[:1])[0, HALF] == pytest.approx(np.median(known.lengths), rel=0.1)


def words(count: int, seed: int) -> KnownStates:
    """How often which words are there. One of four words says the length, and ten of a thousand, each of
    which is rare, say nothing.
    """
    generator = np.random.default_rng(seed)
    counts, rows = np.zeros((count, 1004), np.float32), np.arange(count)
    says = generator.integers(0, 4, count)
    counts[rows, says] = np.log(2)
    for _ in range(10):
        counts[rows, generator.integers(4, 1004, count)] = np.log(2)
    lengths = 20 * np.exp(says + generator.normal(0, 0.5, count))
    return KnownStates(0, counts, lengths.round().astype(np.float32), np.ones(count, bool))


def test_rare_words_do_not_hide_what_frequent_ones_say() -> None:
    known, asked = words(200, seed=0), words(300, seed=1)
    model = learned(known)
    told = np.array([model.log_length(each, 0) for each in asked.states])
    scaled = fit(Decomposed.of(known.states), np.log(known.lengths.astype(np.float64)), known.ended)
    logs = np.log(asked.lengths.astype(np.float64))
    assert rank_correlation(told, logs) > rank_correlation(asked.states @ scaled.weights, logs) + 0.1
    assert rank_correlation(told, logs) > 0.75


def corners(count: int, seed: int) -> KnownStates:
    """Answers are long where two numbers of the state have the same sign, and short elsewhere."""
    generator = np.random.default_rng(seed)
    states = generator.normal(size=(count, 4)).astype(np.float32)
    states[:, :2] += 4 * np.sign(states[:, :2])
    lengths = np.where(states[:, 0] * states[:, 1] > 0, 400, 20) * np.exp(generator.normal(0, 0.1, count))
    return KnownStates(LAYER, states, lengths.round().astype(np.float32), np.ones(count, bool))


@pytest.mark.parametrize("count", [250, 900])
def test_distances_say_what_no_sum_of_numbers_does(count: int) -> None:
    """Also where there are more answers than centres."""
    known, asked = corners(count, seed=0), corners(300, seed=1)
    model = by_distance(known)
    assert len(model.centres) == min(count, CENTRES)
    lengths = asked.lengths.astype(np.float64)
    distances, sums = (
        rank_correlation(said(each, asked.states)[:, HALF], lengths) for each in (model, learned(known))
    )
    assert distances > 0.6
    assert abs(sums) < 0.3


def test_an_answers_fold_is_left_out_of_what_its_distances_say_of_it() -> None:
    known = corners(80, seed=0)
    model, logs = learned_by_distance(known)
    others = np.arange(80) >= 8
    without = by_distance(
        KnownStates(LAYER, known.states[others], known.lengths[others], known.ended[others])
    )
    alone, all_of_them = (each.log_length(known.states[5], LAYER) for each in (without, model))
    assert alone is not None
    assert all_of_them is not None
    assert abs(logs[5] - alone) < 0.5 * abs(all_of_them - alone)


def test_what_is_still_to_come_is_the_median_of_the_answers_that_have_lasted_so_long() -> None:
    lengths = np.arange(1.0, 101.0)
    model = StateModel(LAYER, np.zeros(HIDDEN), 0.0, np.full(100, 2.0), lengths, np.ones(100, bool))
    assert model.to_come(2.0, 0) == 50
    assert model.to_come(2.0, 60) == 20
    assert model.to_come(2.0, 99) == 1
    assert model.to_come(2.0, 200) == 50, "longer than all of them"
    cut = StateModel(LAYER, model.weights, 0.0, model.logs, lengths, lengths > 80)
    assert cut.to_come(2.0, 60) == 30, "those that were cut would have been longer"
