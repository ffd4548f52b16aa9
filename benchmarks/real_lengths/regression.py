"""What a ridge regression of log length says, and distributions of lengths around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from python_backends.nouns.request import Floats
from python_backends.prediction.lengths import EPSILON, Doubles, Flags, distribution, order
from python_backends.prediction.ridge import Ridge
from python_backends.prediction.state_model import NEIGHBOURS


def says(ridge: Ridge, features: Floats) -> Doubles:
    """[rows] log lengths."""
    logs: Doubles = features @ ridge.weights + ridge.offset
    return logs


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
        return weighed(np.clip(self.lengths[part] * shift, 1.0, self.lengths.max()), self.ended[part])


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
