"""Ridge regression of log length, all strengths at the cost of one, and distributions of lengths around it.

An answer that was cut only says "at least so long": its log length becomes what the regression expects of one
that is at least so long (Buckley and James 1979), again and again until that is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Floats
from python_backends.prediction.lengths import distribution, order

Doubles = NDArray[np.float64]
Flags = NDArray[np.bool_]

STRENGTHS = tuple(10.0**power for power in np.arange(-1, 5.5, 0.5))
ROUNDS = 6  # of Buckley and James's rule
NEIGHBOURS = 100
EPSILON = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """What all strengths have in common: standardised features in their principal directions, or rather those
    of the rows, where there are fewer rows than features.
    """

    mean: Doubles  # [features]
    scale: Doubles  # [features]
    left: Doubles  # [rows, k] orthonormal
    values: Doubles  # [k] squares of the singular values
    back: Doubles  # [features, k]

    @staticmethod
    def of(features: Floats) -> Solved:
        x = features.astype(np.float64)
        mean, scale = x.mean(axis=0), x.std(axis=0)
        scale[scale < EPSILON] = 1.0
        x = (x - mean) / scale
        if x.shape[0] <= x.shape[1]:
            values, left = np.linalg.eigh(x @ x.T)
            keep = values > EPSILON * values[-1]
            values, left = values[keep], left[:, keep]
            return Solved(mean, scale, left, values, x.T @ left / np.sqrt(values))
        values, right = np.linalg.eigh(x.T @ x)
        keep = values > EPSILON * values[-1]
        values, right = values[keep], right[:, keep]
        return Solved(mean, scale, x @ right / np.sqrt(values), values, right)

    def fit(self, targets: Doubles, strength: float) -> Ridge:
        middle = float(targets.mean())
        inner = self.left.T @ (targets - middle)
        weights = self.back @ (inner * np.sqrt(self.values) / (self.values + strength))
        shrunk = self.values / (self.values + strength)
        fitted = self.left @ (shrunk * inner)
        leverage = (self.left**2) @ shrunk + 1 / len(targets)
        left_out = targets - (targets - middle - fitted) / (1 - np.minimum(leverage, 0.999))
        weights = weights / self.scale
        return Ridge(weights, middle - float(weights @ self.mean), left_out)


@dataclass(frozen=True, slots=True, eq=False)
class Ridge:
    weights: Doubles  # [features]
    offset: float
    left_out: Doubles  # [rows] what is said of each row by the others

    def __call__(self, features: Floats) -> Doubles:
        return features @ self.weights + self.offset


def fit_censored(solved: Solved, logs: Doubles, ended: Flags, strength: float) -> Ridge:
    """`logs` [rows] of lengths; where not `ended`, of the least that the length can be."""
    ridge = solved.fit(logs, strength)
    if ended.all():
        return ridge
    for _ in range(ROUNDS):
        ridge = solved.fit(expected(logs, ended, ridge.left_out), strength)
    return ridge


def expected(logs: Doubles, ended: Flags, said: Doubles) -> Doubles:
    """[rows] `logs`, and where they were cut what is expected beyond, from the residuals of all rows."""
    residuals = logs - said
    places = order(residuals.astype(np.float32), ended)
    sorted_residuals = residuals[places]
    steps = np.diff(distribution(ended[places], np.ones(len(places))), prepend=0.0)
    steps[-1] += 1.0 - steps.sum()  # the longest gets what is missing
    mass, sums = np.cumsum(steps[::-1])[::-1], np.cumsum((steps * sorted_residuals)[::-1])[::-1]
    after = np.searchsorted(sorted_residuals, residuals, side="right")
    inside = np.minimum(after, len(mass) - 1)
    beyond = np.where(
        (after < len(mass)) & (mass[inside] > EPSILON),
        sums[inside] / np.maximum(mass[inside], EPSILON),
        residuals,
    )
    return np.where(ended, logs, said + np.maximum(beyond, residuals))


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Distributions of lengths around what a regression says of a request: as the answers next to it, of
    which nearly the same was said, differ from that. `shifted`: in proportion to it; otherwise just their
    lengths.
    """

    said: Doubles  # [rows] ascending, of each known answer by the others
    lengths: Doubles  # [rows]
    ended: Flags  # [rows]
    neighbours: int
    shifted: bool

    @staticmethod
    def of(
        said: Doubles, lengths: Doubles, ended: Flags, neighbours: int = NEIGHBOURS, shifted: bool = True
    ) -> Spread:
        places = np.argsort(said, kind="stable")
        return Spread(said[places], lengths[places], ended[places], neighbours, shifted)

    def near(self, said: float) -> tuple[Doubles, Doubles]:
        """(lengths ascending, their probabilities)."""
        count = min(self.neighbours, len(self.said))
        begin = int(np.searchsorted(self.said, said)) - count // 2
        begin = max(0, min(begin, len(self.said) - count))
        part = slice(begin, begin + count)
        shift = np.exp(said - self.said[part]) if self.shifted else 1.0
        return weighed(np.maximum(self.lengths[part] * shift, 1.0), self.ended[part])


def weighed(lengths: Doubles, ended: Flags) -> tuple[Doubles, Doubles]:
    """(lengths ascending, their probabilities) by Kaplan and Meier's estimate."""
    places = order(lengths.astype(np.float32), ended)
    steps = np.diff(distribution(ended[places], np.ones(len(places))), prepend=0.0)
    steps[-1] += 1.0 - steps.sum()
    return lengths[places], steps


def quantile(lengths: Doubles, probabilities: Doubles, level: float) -> float:
    place = int(np.searchsorted(np.cumsum(probabilities), level - EPSILON))
    return float(lengths[min(place, len(lengths) - 1)])


def parts(folds: Sequence[int]) -> list[Flags]:
    """[rows] for each fold: whether a row is in it."""
    numbers = np.array(folds)
    return [numbers == number for number in np.unique(numbers)]
