"""A distribution of lengths from weighted observations, some of which only say "at least this many".

An answer that ended by itself is an observation; one cut short (by max_tokens, a deadline, a client that
left) is censored: it would have been longer. The distribution is the product-limit estimate (Kaplan and Meier
1958) with weights, as in censored quantile regression forests (Li and Bradic, AISTATS 2020); without censored
observations it is the plain weighted distribution. Forest and history both use it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import QUANTILE_LEVELS, Floats, LengthPrediction

Doubles = NDArray[np.float64]
Flags = NDArray[np.bool_]

LEVELS: Doubles = np.array(QUANTILE_LEVELS)
EPSILON = 1e-9


def order(lengths: Floats | Doubles, ended: Flags) -> NDArray[np.int64]:
    """The order in which observations are sorted: by length, and for equal lengths the censored ones last."""
    return np.lexsort((~ended, lengths))  # type: ignore[no-any-return]


def distribution(ended: Flags, weights: Doubles) -> Doubles:
    """[observations] P(length <= that of the observation), in the order of
    `order`. Ends below 1 if the longest is censored.
    """
    at_risk = weights[::-1].cumsum()[::-1]
    dying = np.divide(weights * ended, at_risk, out=np.zeros_like(at_risk), where=at_risk > EPSILON)
    return 1.0 - np.cumprod(1.0 - dying)  # type: ignore[no-any-return]


def predict(
    lengths: Floats | Doubles, below: Doubles, most: float, levels: Doubles = LEVELS
) -> LengthPrediction:
    """Mean and quantiles at `levels` of an answer of at most `most` tokens, from sorted `lengths` with the
    distribution `below`.

    What is missing to 1 is longer than the longest, and how much is not known. A quantile there is `most`,
    which it does not exceed; in the mean it counts as the middle of the two, in logarithms, so that a `most`
    that answers seldom come near does not decide it.
    """
    known = np.append(np.minimum(lengths, most), most)
    beyond = np.sqrt(known[-2] * most)
    mean = np.diff(below, prepend=0.0) @ known[:-1] + (1.0 - below[-1]) * beyond
    return LengthPrediction(float(mean), known[np.searchsorted(below, levels - EPSILON)].astype(np.float32))


def observed(lengths: Floats, ended: Flags, most: float) -> LengthPrediction:
    """Mean and quantiles of an answer of at most `most` tokens, from observations of equal weight, in any
    order.
    """
    places = order(lengths, ended)
    return predict(lengths[places], distribution(ended[places], np.ones(len(places))), most)
