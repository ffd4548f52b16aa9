"""The forest as arrays gives what scikit-learn's trees and
Meinshausen's formula give, and keeps its promises.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from python_backends.nouns.request import Floats
from python_backends.prediction import forest as forests
from python_backends.prediction.features import NUM_FEATURES
from python_backends.prediction.forest import Forest, ForestError, Observations, calibrate, grow
from python_backends.prediction.lengths import LEVELS, order


def tasks(count: int, seed: int) -> Observations:
    """Two instructions: answers as long as the input or three times as
    long, and noisy; the second is cut at 120.
    """
    rng = np.random.default_rng(seed)
    kinds, inputs = rng.integers(0, 2, count), rng.integers(5, 60, count)
    features = rng.normal(size=(count, NUM_FEATURES)).astype(np.float32)
    features[:, 0], features[:, 20] = kinds, inputs
    lengths = np.where(kinds, 3 * inputs, inputs) * rng.uniform(0.8, 1.2, count)
    ended = (kinds == 0) | (lengths < 120)
    seen = np.minimum(lengths.round(), 120).astype(np.float32)
    return Observations(features, seen, ended, kinds.astype(np.uint64) + 7, np.ones(count))


@pytest.fixture(scope="module")
def grown() -> Forest:
    return grow(tasks(800, seed=1))


def meinshausen(trees: RandomForestRegressor, seen: Observations, row: Floats) -> list[float]:
    """Weights of the observations, spelled out: one part of the leaf, the mean over the trees."""
    weights = np.zeros(len(seen))
    for tree in trees.estimators_:
        together = tree.apply(seen.features) == tree.apply(row[None])[0]
        weights += together / together.sum() / len(trees.estimators_)
    return weights.tolist()


def random_forest(seen: Observations) -> RandomForestRegressor:
    return RandomForestRegressor(
        forests.NUM_TREES,
        min_samples_leaf=forests.MIN_LEAF,
        max_features=forests.SHARE_OF_FEATURES,
        random_state=0,
    ).fit(seen.features, seen.lengths, seen.weights)


def test_weights_are_meinshausens(grown: Forest) -> None:
    seen = tasks(800, seed=1)
    seen = seen[order(seen.lengths, seen.ended)]
    trees = random_forest(seen)
    for row in tasks(5, seed=2).features:
        assert grown.weights(row[None])[0] == pytest.approx(meinshausen(trees, seen, row), abs=1e-6)


def test_the_mean_is_nearly_that_of_the_random_forest() -> None:
    """Not quite: a tree of scikit-learn averages its bootstrap sample, these weights all observations."""
    seen = tasks(800, seed=1)
    seen = Observations(seen.features, seen.lengths, np.ones(800, bool), seen.instructions, seen.weights)
    trees = random_forest(seen)
    asked = tasks(200, seed=3).features
    means = [prediction.mean for prediction in grow(seen).predict(asked)]
    assert np.abs(np.array(means) - trees.predict(asked)).mean() < 2


def test_quantiles_cover_what_they_promise_overall_and_for_each_instruction(grown: Forest) -> None:
    asked = tasks(1500, seed=4)
    predictions = grown.predict(asked.features, asked.instructions)
    covered = asked.lengths[:, None] <= np.stack([prediction.quantiles for prediction in predictions])
    free = asked.ended  # what was cut would have been longer
    assert covered[free].mean(axis=0)[4] == pytest.approx(0.9, abs=0.05)
    first = free & (asked.instructions == 7)
    assert covered[first].mean(axis=0) == pytest.approx(LEVELS, abs=0.06)


def test_lengths_behind_the_cut_are_not_forgotten(grown: Forest) -> None:
    """Answers of the second kind to 55 tokens have 165; all were cut at 120, and count as at least that."""
    row = np.zeros((1, NUM_FEATURES), np.float32)
    row[0, 0], row[0, 20] = 1, 55
    assert grown.predict(row)[0].quantiles[2] == 120


def test_calibration_asks_for_the_level_that_covered() -> None:
    """Were lengths as probable as they should be, nothing changes; were all
    of them too long, higher levels are asked for.
    """
    honest = (np.arange(1000) + 0.5) / 1000
    ones = np.ones(1000)
    assert calibrate(honest, ones) == pytest.approx(LEVELS, abs=0.002)
    assert (calibrate(np.sqrt(honest), ones)[:5] > LEVELS[:5]).all()
    assert calibrate(np.zeros(0), np.zeros(0)) == pytest.approx(LEVELS)
    assert (calibrate(np.array([0.3]), np.ones(1)) <= 1).all()


def test_an_observation_that_stands_for_three_counts_three_times() -> None:
    scores, weights = np.random.default_rng(3).random(200), np.tile([1.0, 3.0], 100)
    assert calibrate(scores, weights) == pytest.approx(
        calibrate(np.repeat(scores, weights.astype(int)), np.ones(400)), abs=0.01
    )


def test_a_forest_survives_its_file_to_the_last_bit(grown: Forest, tmp_path: Path) -> None:
    grown.save(tmp_path / "forest.npz")
    read = Forest.load(tmp_path / "forest.npz")
    asked = tasks(20, seed=5)
    pairs = zip(
        grown.predict(asked.features, asked.instructions),
        read.predict(asked.features, asked.instructions),
        strict=True,
    )
    assert all(one.mean == other.mean and (one.quantiles == other.quantiles).all() for one, other in pairs)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no forest", b"\x93NUMPY"])
def test_a_broken_file_is_an_error_that_is_expected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "forest.npz").write_bytes(content)
    with pytest.raises(ForestError):
        Forest.load(tmp_path / "forest.npz")
