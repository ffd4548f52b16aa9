"""A random forest that predicts a distribution of lengths: grown by scikit-learn, stored and evaluated as
plain arrays.

The mean is Magnus's prediction (arXiv 2406.04785). The quantiles are those of a quantile regression forest
(Meinshausen, JMLR 7, 2006): the weight of an observation is, on average over the trees, its part of the leaf
if the request falls into the same leaf. They are calibrated on the observations that each tree has not seen
(`calibrate`). With the arrays a prediction is much faster than scikit-learn's own `predict`, and the
predictor needs neither scikit-learn nor a pickle. They are written as one .npz file. Grown by the learner,
used by the predictor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Floats, LengthPrediction
from python_backends.prediction.lengths import EPSILON, LEVELS, Doubles, Flags, distribution, order, predict
from python_backends.prediction.versions import DAMAGED

Places = NDArray[np.int32]

NUM_TREES = 60
MIN_LEAF = 3  # observations
SHARE_OF_FEATURES = 0.7  # tried for each split
MIN_TO_CALIBRATE = 20  # observations of one instruction that its own calibration needs


class ForestError(ValueError):
    """A file does not contain a valid forest."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """All trees one after the other. Observations are sorted by
    `lengths.order`; a leaf is its own left and right child.
    """

    roots: Places  # [trees]
    left: Places  # [nodes]
    right: Places  # [nodes]
    feature: Places  # [nodes] the index of the feature that a node compares
    threshold: Doubles  # [nodes] left if the feature is not greater
    first: Places  # [nodes] where a leaf's members begin
    count: Places  # [nodes] how many it has; 0 for inner nodes
    members: Places  # [trees · observations]
    parts: Floats  # [trees · observations] weight of a member in its leaf; they add up to 1
    lengths: Floats  # [observations] ascending
    ended: Flags  # [observations] false: censored
    levels: Doubles  # [1 + instructions, levels] calibrated; the first row is for all other instructions
    instructions: NDArray[np.uint64]  # [instructions] ascending

    def predict(
        self,
        features: Floats,
        instructions: NDArray[np.uint64] | None = None,
        most: Sequence[int] | None = None,
    ) -> list[LengthPrediction]:
        """One prediction for each row of `features`; `instructions` are the ids of their instructions, `most`
        the tokens that each answer may have; None: no more than the longest that is known.
        """
        rows = self._rows_of(instructions, len(features))
        limits = [float(self.lengths[-1])] * len(features) if most is None else most
        below = (distribution(self.ended, weights) for weights in self.weights(features))
        return [
            predict(self.lengths, each, limit, self.levels[row])
            for each, limit, row in zip(below, limits, rows, strict=True)
        ]

    def weights(self, features: Floats, trees: Flags | None = None) -> Doubles:
        """[rows, observations] the weights of the observations; with `trees` [rows,
        trees], only by the trees that are true there.
        """
        leaves = self._leaves(features)
        return np.stack(
            [self._weights(leaves[i] if trees is None else leaves[i, trees[i]]) for i in range(len(leaves))]
        )

    def _leaves(self, features: Floats) -> Places:
        """[rows, trees] the leaf of each row in each tree."""
        rows = np.arange(len(features))[:, None]
        nodes = np.broadcast_to(self.roots, (len(features), len(self.roots)))
        while not self.count[nodes].all():
            goes_left = features[rows, self.feature[nodes]] <= self.threshold[nodes]
            nodes = np.where(goes_left, self.left[nodes], self.right[nodes])
        return nodes

    def _weights(self, leaves: Places) -> Doubles:
        counts = self.count[leaves]
        ends = counts.cumsum()
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(
            self.first[leaves] - (ends - counts), counts
        )
        sums = np.bincount(self.members[places], self.parts[places], minlength=len(self.lengths))
        return sums.astype(np.float64, copy=False) / max(1, len(leaves))

    def _rows_of(self, instructions: NDArray[np.uint64] | None, num_rows: int) -> NDArray[np.int64]:
        """[rows] the row of `levels` for each instruction."""
        if instructions is None or not len(self.instructions):
            return np.zeros(num_rows, np.int64)
        places = np.minimum(np.searchsorted(self.instructions, instructions), len(self.instructions) - 1)
        return np.where(self.instructions[places] == instructions, places + 1, 0)

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, **{field.name: getattr(self, field.name) for field in fields(self)})

    @staticmethod
    def load(path: Path) -> Forest:
        """Raises ForestError."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return Forest(**{field.name: arrays[field.name] for field in fields(Forest)})
        except DAMAGED as error:
            raise ForestError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """The observations that a forest is grown from."""

    features: Floats  # [observations, NUM_FEATURES]
    lengths: Floats  # [observations] tokens
    ended: Flags  # [observations] false: cut short
    instructions: NDArray[np.uint64]  # [observations] ids
    weights: Doubles  # [observations] how many answers each represents

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, places: Any) -> Observations:
        return Observations(*(getattr(self, field.name)[places] for field in fields(self)))


def grow(observations: Observations, seed: int = 0) -> Forest:
    """A calibrated forest. One thread; about a second for 1,500 observations."""
    from sklearn.ensemble import RandomForestRegressor  # here, because only learning needs it

    seen = observations[order(observations.lengths, observations.ended)]
    grown = RandomForestRegressor(
        NUM_TREES, min_samples_leaf=MIN_LEAF, max_features=SHARE_OF_FEATURES, random_state=seed, n_jobs=1
    )
    grown.fit(seen.features, seen.lengths, sample_weight=seen.weights)
    flat = _flatten([estimator.tree_ for estimator in grown.estimators_], seen)
    unseen = np.ones((len(seen), NUM_TREES), bool)
    for tree, in_bag in enumerate(grown.estimators_samples_):
        unseen[in_bag, tree] = False
    return _calibrated(flat, seen, unseen)


def _flatten(trees: list[Any], seen: Observations) -> Forest:
    sizes = np.array([tree.node_count for tree in trees])
    roots = (np.cumsum(sizes) - sizes).astype(np.int32)
    nodes = np.arange(sizes.sum(), dtype=np.int32)
    left = np.concatenate([tree.children_left for tree in trees])
    right = np.concatenate([tree.children_right for tree in trees])
    is_leaf, root_of = left < 0, np.repeat(roots, sizes)
    first, count, members, parts = np.zeros_like(nodes), np.zeros_like(nodes), [], []
    for number, (tree, root) in enumerate(zip(trees, roots, strict=True)):
        leaves = tree.apply(seen.features)
        part = slice(root, root + tree.node_count)
        count[part] = np.bincount(leaves, minlength=tree.node_count)
        first[part] = number * len(seen) + np.cumsum(count[part]) - count[part]
        members.append(np.argsort(leaves, kind="stable"))
        parts.append((seen.weights / np.bincount(leaves, seen.weights)[leaves])[members[-1]])
    return Forest(
        roots=roots,
        left=np.where(is_leaf, nodes, left + root_of),
        right=np.where(is_leaf, nodes, right + root_of),
        feature=np.maximum(np.concatenate([tree.feature for tree in trees]), 0).astype(np.int32),
        threshold=np.concatenate([tree.threshold for tree in trees]),
        first=first,
        count=count,
        members=np.concatenate(members).astype(np.int32),
        parts=np.concatenate(parts).astype(np.float32),
        lengths=seen.lengths.astype(np.float32),
        ended=seen.ended,
        levels=LEVELS[None],
        instructions=np.zeros(0, np.uint64),
    )


def _calibrated(forest: Forest, seen: Observations, unseen: Flags) -> Forest:
    """`forest` with calibrated levels, for all observations and for each
    instruction with at least MIN_TO_CALIBRATE of them.
    """
    scores = _scores(forest, seen, unseen)
    usable = seen.ended & unseen.any(axis=1)
    ids, counts = np.unique(seen.instructions[usable], return_counts=True)
    ids = ids[counts >= MIN_TO_CALIBRATE]
    groups = [usable, *(usable & (seen.instructions == each) for each in ids)]
    rows = [calibrate(scores[group], seen.weights[group]) for group in groups]
    return replace(forest, levels=np.stack(rows), instructions=ids)


def _scores(forest: Forest, seen: Observations, unseen: Flags) -> Doubles:
    """[observations] the probability of a shorter answer, by the trees not
    grown from the observation and without its weight.
    """
    scores = np.zeros(len(seen))
    starts = np.searchsorted(seen.lengths, seen.lengths)  # where the observations of the same length begin
    for place in range(len(seen)):
        weights = forest.weights(seen.features[place : place + 1], unseen[place : place + 1])[0]
        weights[place] = 0.0
        if starts[place]:
            scores[place] = distribution(seen.ended, weights)[starts[place] - 1]
    return scores


def calibrate(scores: Doubles, weights: Doubles) -> Doubles:
    """For each of LEVELS the level to ask for instead, so that it covers that share of what was not seen.

    This is split conformal prediction (Vovk et al. 2005) in the space of levels, as Kuleshov et al., ICML
    2018, with out-of-bag trees in place of a second data set. An observation counts by its weight. A length
    is covered by the quantile at level a if the probability of shorter lengths is below a.
    """
    if not len(scores):
        return LEVELS
    places = np.argsort(scores)
    ordered, reached = np.append(scores[places], 1.0), weights[places].cumsum()
    ranks = np.searchsorted(reached, (reached[-1] + weights.mean()) * LEVELS - EPSILON)
    return np.minimum(ordered[ranks] + 2 * EPSILON, 1.0)  # type: ignore[no-any-return]
