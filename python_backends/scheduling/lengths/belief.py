"""The believed length of each answer: its prediction if one has come, otherwise the lengths of answers that
ended here recently.

A belief is a row of output tokens, one for each of `QUANTILE_LEVELS`, and each has its share of `WEIGHTS`.
Owned by the future memory, its only caller; touches no sequence.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import QUANTILE_LEVELS, LengthPrediction

Array = NDArray[np.float64]

# each level represents what is nearer to it than to its neighbours
WEIGHTS: Array = np.diff([0.0, *(np.array(QUANTILE_LEVELS[1:]) + QUANTILE_LEVELS[:-1]) / 2, 1.0])
MEDIAN = QUANTILE_LEVELS.index(0.5)
# rest of an answer longer than believed, as a share of its tokens so far
BEYOND: Array = np.array([0.02, 0.1, 0.25, 0.5, 1.0, 2.0])
NUM_REMEMBERED = 512  # answers
FEWEST = 16  # answers that must have ended before they are used for the next ones
RENEWED_AFTER = 16  # answers


class Lengths:
    """The lengths of the latest NUM_REMEMBERED answers, and beliefs made from
    them. `seed` is for the draws of `sampled`.
    """

    def __init__(self, seed: int = 0) -> None:
        self._ended: deque[int] = deque(maxlen=NUM_REMEMBERED)
        self._random = np.random.default_rng(seed)
        self._prior: Array | None = None
        self._since_renewal = 0

    def ended(self, num_tokens: int) -> None:
        """An answer has ended with this many tokens."""
        self._ended.append(num_tokens)
        self._since_renewal += 1
        if len(self._ended) >= FEWEST and (self._prior is None or self._since_renewal >= RENEWED_AFTER):
            self._prior = np.quantile(self._ended, QUANTILE_LEVELS)
            self._since_renewal = 0

    @property
    def usual_tokens(self) -> float:
        """The mean of an answer of which nothing is known; infinite if there are no answers yet."""
        return math.inf if self._prior is None else float(self._prior @ WEIGHTS)

    def believed(self, predictions: Sequence[LengthPrediction | None], max_tokens: Array) -> Array:
        """[n, levels] of answers that may have `max_tokens` [n]: what they are
        expected to have if there is no prediction.
        """
        unknown = np.full(len(WEIGHTS), np.inf) if self._prior is None else self._prior
        told = [unknown if prediction is None else prediction.quantiles for prediction in predictions]
        return np.clip(np.array(told, np.float64).reshape(-1, len(WEIGHTS)), 1.0, max_tokens[:, None])

    def sampled(self, made: Array, max_tokens: Array) -> Array:
        """[n, levels] each row is one draw from the answers that ended here with
        more than `made` [n] tokens (Past-Future's rule).
        """
        if len(self._ended) < FEWEST:
            drawn = max_tokens
        else:
            ended = np.sort(self._ended)
            first = np.searchsorted(ended, made, side="right")
            places = first + (self._random.random(len(made)) * (len(ended) - first)).astype(np.int64)
            drawn = np.where(first < len(ended), ended[np.minimum(places, len(ended) - 1)], max_tokens)
        return np.repeat(np.minimum(drawn, max_tokens).astype(np.float64)[:, None], len(WEIGHTS), axis=1)


def rest(believed: Array, made: Array, most: Array) -> tuple[Array, Array]:
    """(tokens to come [n, levels], weights [n, levels]) of answers that have `made` [n] tokens and can have
    at most `most` [n] more.

    The belief is conditioned on `made`: lengths that have been reached get no weight, and the others share
    it. An answer longer than its whole belief may still get up to twice its tokens so far (BEYOND); at least
    one token is always expected.
    """
    ahead = believed - made[:, None]
    weights = WEIGHTS * (ahead > 0)
    total = weights.sum(axis=1)
    older = total == 0
    ahead[older] = np.maximum(made[older], 1)[:, None] * BEYOND
    weights[older] = WEIGHTS
    total[older] = 1.0
    return np.clip(np.ceil(ahead), 1.0, np.maximum(most, 1.0)[:, None]), weights / total[:, None]
