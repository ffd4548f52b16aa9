"""Ridge regression of log length: all strengths at the cost of one, each row also as the others predict it.

An answer that was cut short only says "at least so long": its log length becomes what the regression expects
of one that is at least so long (Buckley and James 1979), again and again until that is settled. Called by
`state_model`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from python_backends.nouns.request import Floats
from python_backends.prediction.lengths import EPSILON, Doubles, Flags, distribution, order

# of the penalty, for features of variance 1
STRENGTHS = tuple(10.0**power for power in np.arange(2.0, 5.5, 0.5))
# the largest is taken whose error of rows left out is at most this much larger than the smallest: among those
# left are rows of the same kinds, and what is new needs more of it
ALLOWED_ERROR = 1.05
ROUNDS = 6  # of Buckley and James's rule
MOST_LEVERAGE = 0.999


@dataclass(frozen=True, slots=True, eq=False)
class Ridge:
    weights: Doubles  # [features]
    offset: float
    left_out: Doubles  # [rows] what the other rows predict of each


@dataclass(frozen=True, slots=True, eq=False)
class Decomposed:
    """Standardised features in their principal directions, or rather those of the rows, where there are fewer
    rows than features: what all strengths have in common.
    """

    mean: Doubles  # [features]
    scale: Doubles  # [features]
    left: Doubles  # [rows, k] orthonormal
    values: Doubles  # [k] squares of the singular values
    back: Doubles  # [features, k]

    @staticmethod
    def of(features: Floats) -> Decomposed:
        x = features.astype(np.float64)
        mean, scale = x.mean(axis=0), x.std(axis=0)
        scale[scale < EPSILON] = 1.0
        x = (x - mean) / scale
        is_wide = x.shape[0] <= x.shape[1]
        values, vectors = np.linalg.eigh(x @ x.T if is_wide else x.T @ x)
        keep = values > EPSILON * max(values[-1], EPSILON)
        values, vectors = values[keep], vectors[:, keep]
        others = (x.T if is_wide else x) @ vectors / np.sqrt(values)
        left, back = (vectors, others) if is_wide else (others, vectors)
        return Decomposed(mean, scale, left, values, back)

    def fit(self, targets: Doubles, strength: float) -> Ridge:
        middle = float(targets.mean())
        inner = self.left.T @ (targets - middle)
        shrunk = self.values / (self.values + strength)
        weights = self.back @ (shrunk * inner / np.sqrt(self.values)) / self.scale
        fitted = middle + self.left @ (shrunk * inner)
        leverage = np.minimum((self.left**2) @ shrunk + 1 / len(targets), MOST_LEVERAGE)
        left_out = targets - (targets - fitted) / (1 - leverage)
        return Ridge(weights, middle - float(weights @ self.mean), left_out)

    def fit_cut(self, logs: Doubles, ended: Flags, strength: float) -> Ridge:
        """The same where `logs` [rows] that have not `ended` are the least that they can be."""
        ridge = self.fit(logs, strength)
        for _ in range(0 if ended.all() else ROUNDS):
            ridge = self.fit(expected(logs, ended, ridge.left_out), strength)
        return ridge


def fit(features: Floats, logs: Doubles, ended: Flags) -> Ridge:
    """Of `features` [rows, features] and `logs` [rows] of lengths; where not `ended`, of the least that the
    length can be.
    """
    decomposed = Decomposed.of(features)
    errors = [
        float(np.square(decomposed.fit(logs, strength).left_out - logs).mean()) for strength in STRENGTHS
    ]
    best = max(place for place, error in enumerate(errors) if error <= ALLOWED_ERROR * min(errors))
    return decomposed.fit_cut(logs, ended, STRENGTHS[best])


def expected(logs: Doubles, ended: Flags, predicted: Doubles) -> Doubles:
    """[rows] `logs`, and where they were cut what is expected of one that is at least so long, from the
    residuals of all rows.
    """
    residuals = logs - predicted
    places = order(residuals, ended)
    ordered = residuals[places]
    steps = np.diff(distribution(ended[places], np.ones(len(places))), prepend=0.0)
    steps[-1] += 1.0 - steps.sum()  # the longest gets what is missing
    mass, sums = np.cumsum(steps[::-1])[::-1], np.cumsum((steps * ordered)[::-1])[::-1]
    after = np.minimum(np.searchsorted(ordered, residuals, side="right"), len(mass) - 1)
    beyond = np.where(mass[after] > EPSILON, sums[after] / np.maximum(mass[after], EPSILON), residuals)
    return np.where(ended, logs, predicted + np.maximum(beyond, residuals))
