"""Ridge regression of log length, on numbers or on distances: all strengths at the cost of one, each row also
as the other folds predict it.

A fold is a run of neighbouring rows, so that answers that come together, as those of a conversation or of one
request with n above 1, say nothing of each other. The other rows alone, without folds, say too much of a row:
the shorter it is, the more the others predict of it, so what they predict tells its length.

An answer that was cut short only says "at least so long": its log length becomes what the regression expects
of one that is at least so long (Buckley and James 1979), again and again until that is settled. Called by
`state_model`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from python_backends.nouns.request import Floats
from python_backends.prediction.lengths import EPSILON, Doubles, Flags, distribution, order

# of the penalty, for features of variance 1
STRENGTHS = tuple(10.0**power for power in np.arange(2.0, 5.5, 0.5))
# the largest is taken whose error of rows left out is at most this much larger than the smallest: among those
# left are rows of the same kinds, and what is new needs more of it
ALLOWED_ERROR = 1.05
ROUNDS = 6  # of Buckley and James's rule
FOLDS, MOST_ROWS = 10, 100  # at least so many folds, and more of them where one would have more rows
MOST_OWN = 0.999  # of what a fold says of itself: some is always left to the others
SMALLEST = 1e-6  # of the largest: a direction of the centres that says less is left out


@dataclass(frozen=True, slots=True, eq=False)
class Ridge:
    weights: Doubles  # [features]
    offset: float
    left_out: Doubles  # [rows] what the other folds predict of each


@dataclass(frozen=True, slots=True, eq=False)
class Decomposed:
    """Features in their principal directions, or rather those of the rows, where there are fewer rows than
    features: what all strengths have in common.
    """

    mean: Doubles  # [features]
    left: Doubles  # [rows, k] orthonormal
    values: Doubles  # [k] squares of the singular values
    back: Doubles  # [features, k]

    @staticmethod
    def of(features: Floats, is_each_scaled: bool = True) -> Decomposed:
        """Of features with a variance of 1: each of them, or on average, so that what is rare stays small."""
        x = features.astype(np.float64)
        mean, scale = x.mean(axis=0), deviations(x)
        if not is_each_scaled:
            scale = np.full_like(mean, max(float(np.sqrt(x.var(axis=0).mean())), EPSILON))
        found = Decomposed._of((x - mean) / scale)
        return replace(found, mean=mean, back=found.back / scale[:, None])

    @staticmethod
    def of_distances(distances: Doubles, between: Doubles, size: int) -> Decomposed:
        """Of the `distances` [rows, centres], and those `between` the centres: kernel ridge regression with
        the kernel -distance, whose functions are sums over the centres (Nyström's method). The variances add
        up to `size`, as those of `size` standardised features do: the same strengths fit both.
        """
        away = between - between.mean(axis=0)
        values, vectors = np.linalg.eigh(away.mean(axis=1)[:, None] - away)
        keep = values > SMALLEST * values.max(initial=EPSILON)
        mean, into = distances.mean(axis=0), -vectors[:, keep] / np.sqrt(values[keep])
        x = (distances - mean) @ into
        scale = np.sqrt(size / max(float(np.square(x).sum(axis=1).mean()), EPSILON))
        found = Decomposed._of(x * scale)
        return replace(found, mean=mean, back=into @ found.back * scale)

    @staticmethod
    def _of(x: Doubles) -> Decomposed:
        """Of `x` [rows, features], whose mean is 0."""
        is_wide = x.shape[0] <= x.shape[1]
        values, vectors = np.linalg.eigh(x @ x.T if is_wide else x.T @ x)
        keep = values > EPSILON * values.max(initial=EPSILON)
        values, vectors = values[keep], vectors[:, keep]
        others = (x.T if is_wide else x) @ vectors / np.sqrt(values)
        left, back = (vectors, others) if is_wide else (others, vectors)
        return Decomposed(np.zeros(x.shape[1]), left, values, back)

    def fit(self, targets: Doubles, strength: float) -> Ridge:
        middle = float(targets.mean())
        inner = self.left.T @ (targets - middle)
        shrunk = self.values / (self.values + strength)
        weights = self.back @ (shrunk * inner / np.sqrt(self.values))
        fitted = middle + self.left @ (shrunk * inner)
        left_out = targets - self._errors(targets - fitted, shrunk)
        return Ridge(weights, middle - float(weights @ self.mean), left_out)

    def _errors(self, residuals: Doubles, shrunk: Doubles) -> Doubles:
        """[rows] how much each differs from what the other folds predict of it, in closed form."""
        errors, rows = np.empty_like(residuals), len(residuals)
        for fold in np.array_split(np.arange(rows), max(FOLDS, rows // MOST_ROWS)):
            left = self.left[fold]
            own = (left * shrunk) @ left.T + 1 / rows  # [fold, fold] what its rows say of each other
            errors[fold] = np.linalg.solve(np.eye(len(fold)) - MOST_OWN * own, residuals[fold])
        return errors

    def fit_cut(self, logs: Doubles, ended: Flags, strength: float) -> Ridge:
        """The same where `logs` [rows] that have not `ended` are the least that they can be."""
        ridge = self.fit(logs, strength)
        for _ in range(0 if ended.all() else ROUNDS):
            ridge = self.fit(expected(logs, ended, ridge.left_out), strength)
        return ridge


def deviations(x: Doubles) -> Doubles:
    """[features] standard deviations, and 1 of what is always the same."""
    scale: Doubles = x.std(axis=0)
    return np.where(scale < EPSILON, 1.0, scale)


def fit(decomposed: Decomposed, logs: Doubles, ended: Flags) -> Ridge:
    """Of `logs` [rows] of lengths; where not `ended`, of the least that the length can be."""
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
