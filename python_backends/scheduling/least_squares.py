"""Seconds of some work as a sum of its loads, each with a coefficient that is never negative: learned by
least squares, in which old observations lose weight.

Used for the times of steps (`step_time`) and of pieces of training (`piece_time`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MEMORY = 2000  # the weight of an observation falls by 1 / MEMORY with each later one
WARM = 64  # that many observations at the beginning have full weight
FAR = 4.0  # usual errors: work that is further off was interrupted, and gets less weight
NEW = 1.0  # an observation with a larger leverage is unlike all so far
# After this many times in a row that work took less than expected by more than this factor, what was learned
# before was interrupted: work may take longer than it needs, but not less.
NUM_FAR_BELOW, FAR_BELOW = 3, 2.0
STAY = 1e-6  # weight that keeps a coefficient at its value when observations have no information about it

Array = NDArray[np.float64]


class FarBelow:
    """Whether the latest times were far below what was expected: `observe` says so once and counts from 0."""

    def __init__(self) -> None:
        self._count = 0

    def observe(self, seconds: float, expected_s: float) -> bool:
        self._count = self._count + 1 if FAR_BELOW * seconds < expected_s else 0
        if self._count == NUM_FAR_BELOW:
            self._count = 0
            return True
        return False


class LeastSquares:
    """`coefficients` are seconds for one of each feature; `learn` changes them. `memory` and `warm` take the
    place of MEMORY and WARM.

    Keeps the normal equations Σ w·x·xᵀ·c = Σ w·x·t, in which old observations lose weight.
    """

    def __init__(self, num_features: int, memory: int = MEMORY, warm: int = WARM) -> None:
        self._memory, self._warm = memory, warm
        self.coefficients = [0.0] * num_features
        self.count = 0  # observations
        self._products: Array = np.zeros((num_features, num_features))  # Σ w·x·xᵀ
        self._times: Array = np.zeros(num_features)  # Σ w·x·t
        self._usual_error_s = 0.0

    def learn(self, features: Array, seconds: Array) -> Array:
        """`features` [n, features] of work that took `seconds` [n]. Returns what was expected of it [n]."""
        expected_s: Array = features @ np.array(self.coefficients)
        weights = self._weights(features, np.abs(seconds - expected_s))
        fading = (1.0 - 1.0 / self._memory) ** len(features)
        self._products = self._products * fading + (features.T * weights) @ features
        self._times = self._times * fading + (features.T * weights) @ seconds
        self._solve()
        return expected_s

    def forget(self) -> None:
        """All observations. Coefficients stay, each until new observations say something about it."""
        self.count = 0
        self._products, self._times = np.zeros_like(self._products), np.zeros_like(self._times)
        self._usual_error_s = 0.0

    def _weights(self, features: Array, errors_s: Array) -> Array:
        """[n] the weights of these observations. Those far off, which were interrupted, get less weight. One
        unlike all before keeps weight 1, however far off it is: its expected time means little.
        """
        self.count += len(errors_s)
        weights = np.ones(len(errors_s))
        if self.count > self._warm and self._usual_error_s > 0:
            weights = np.minimum(1.0, FAR * self._usual_error_s / np.maximum(errors_s, 1e-9))
        share = max(1.0 - 0.98 ** len(errors_s), len(errors_s) / self.count)
        self._usual_error_s += (float((weights * errors_s).mean()) - self._usual_error_s) * share
        return np.where(self._leverages(features) > NEW, 1.0, weights)

    def _leverages(self, features: Array) -> Array:
        """[n] the leverage of these observations: about 1 / m for one that is like m earlier ones."""
        products, scale = self._scaled()
        scaled = features / scale
        leverages: Array = (scaled * np.linalg.solve(products, scaled.T).T).sum(axis=1)
        return leverages

    def _solve(self) -> None:
        """Solves the least squares; a coefficient that would be negative is set
        to 0, and the others are solved for again.
        """
        products, scale = self._scaled()
        times = self._times / scale + STAY * np.array(self.coefficients) * scale
        used = np.ones(len(self.coefficients), bool)
        while True:
            found = np.linalg.solve(products[np.ix_(used, used)], times[used])
            if (found >= 0).all():
                break
            used[np.flatnonzero(used)[found.argmin()]] = False
        coefficients = np.zeros(len(self.coefficients))
        coefficients[used] = found / scale[used]
        self.coefficients = coefficients.tolist()

    def _scaled(self) -> tuple[Array, Array]:
        """The products scaled to a diagonal of 1 + STAY, and the divisor of each feature. Without that, sizes
        of features differ by 10^8.
        """
        scale = np.sqrt(np.diag(self._products))
        scale[scale == 0] = 1.0
        return self._products / np.outer(scale, scale) + STAY * np.eye(len(scale)), scale
