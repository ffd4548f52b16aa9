"""How long a piece of training takes: a tile (one layer, forward or backward), the loss of some tokens, or
anything that is always about as long.

A constant, plus a time for each sequence, token and KV token of the piece. Learned while training, as the
times of steps are. Owned by what trains in an instance.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from python_backends.nouns.training import NO_LABEL, Loads, Pack
from python_backends.scheduling.least_squares import NUM_FAR_BELOW, Array, FarBelow, LeastSquares

FEATURES = ("constant", "sequence", "token", "KV token")
WARM = 8  # the first pieces: all count the same, and later ones that are far off count less
MEMORY = 500  # pieces: the weight of one falls by 1 / MEMORY with each later one
BATCH = 8  # pieces that are learned from at once, after the first ones
NUM_ERRORS = 64  # latest errors that the margin is taken of
SURE = 0.95  # share of the pieces that are done within the expected time and the margin

MOST_MARGIN = 2.0  # what takes longer was interrupted

NOTHING: Loads = (0, 0, 0.0)


def chunk_kv_tokens(start: Any, length: Any) -> Any:
    """The sum, over the tokens of a chunk, of the tokens that each attends to; numbers or arrays."""
    return length * (start + length / 2)


def loads(pack: Pack, first: int, last: int) -> Loads:
    """Of tokens [first, last) of a pack."""
    pieces = pack.pieces(first, last)
    attended = sum(chunk_kv_tokens(begin - pack.bounds[index], end - begin) for index, begin, end in pieces)
    return len(pieces), last - first, float(attended)


def loss_loads(pack: Pack, first: int, last: int) -> Loads:
    """Of the loss of tokens [first, last): the tokens that are learned are in the place of KV tokens."""
    return 1, last - first, float(np.count_nonzero(pack.labels[first:last] != NO_LABEL))


class PieceTime:
    """Of one kind of pieces. `observe` changes it."""

    def __init__(self) -> None:
        self._fit = LeastSquares(len(FEATURES), MEMORY, WARM)
        self._sizes: set[int] = set()  # tokens of the pieces so far
        self._errors: deque[float] = deque(maxlen=NUM_ERRORS)  # measured / expected
        self._margin = 1.0
        self._far_below = FarBelow()
        self._observed: list[tuple[float, ...]] = []  # not yet learned from
        self.most_tokens = 0  # of a piece so far

    @property
    def is_learned(self) -> bool:
        """Whether the time of any piece is known."""
        return self._fit.count > 0

    def seconds(self, loads: Loads) -> float:
        """Within which such a piece is nearly always done; 0 before any was seen."""
        return self._margin * self.expected_s(loads)

    def expected_s(self, loads: Loads) -> float:
        """That such a piece takes; 0 before any was seen."""
        return float(sum(one * load for one, load in zip(self._fit.coefficients, (1, *loads), strict=True)))

    def observe(self, loads: Loads, seconds: float) -> None:
        """The first piece of a size is not learned from: libraries generate code for it."""
        self.most_tokens = max(self.most_tokens, loads[1])
        if loads[1] not in self._sizes:
            self._sizes.add(loads[1])
            return
        self._observed.append((1.0, *loads, seconds))
        if self._far_below.observe(seconds, self.expected_s(loads)):
            self._begin_again(loads[1])
        if self._fit.count < WARM or len(self._observed) >= BATCH:
            observed, self._observed = np.array(self._observed, np.float64), []
            self._learn(observed[:, :-1], observed[:, -1])

    def _begin_again(self, tokens: int) -> None:
        """Forgets all but the latest observations; the last one is of a piece of `tokens` tokens. Without
        this, pieces that seem not to fit are tried too rarely to correct it.
        """
        self._fit = LeastSquares(len(FEATURES), MEMORY, WARM)
        self._errors.clear()
        self._margin, self.most_tokens = 1.0, tokens
        self._observed = self._observed[-NUM_FAR_BELOW:]

    def _learn(self, features: Array, seconds: Array) -> None:
        is_first = not self._fit.count
        expected_s = self._fit.learn(features, seconds)
        if not is_first:
            self._errors.extend((seconds / np.maximum(expected_s, 1e-9)).tolist())
            self._margin = min(MOST_MARGIN, max(1.0, float(np.quantile(self._errors, SURE))))
