"""Log-probabilities of one stream's tokens, kept as long as its tokens are, so that they survive the death of
an instance.

Written by the stream alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from python_backends.nouns.request import Floats, Ids, LogProbs
from python_backends.nouns.step import RowLogProbs


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogProbs:
    """Of one token."""

    chosen: float
    top_ids: Ids  # [as many as any request of its step asks for]
    top: Floats


# from an engine that doesn't report them
UNKNOWN = TokenLogProbs(math.nan, np.zeros(0, np.int32), np.zeros(0, np.float32))


def by_row(scores: RowLogProbs | None) -> dict[int, TokenLogProbs]:
    """Those of a step by row."""
    if scores is None:
        return {}
    values = scores.values
    shape = (len(scores.rows), values.num_top)
    ids, tops = values.top_ids.reshape(shape), values.top.reshape(shape)
    rows = zip(scores.rows.tolist(), values.chosen.tolist(), ids, tops, strict=True)
    return {row: TokenLogProbs(chosen, top_ids, top) for row, chosen, top_ids, top in rows}


class StreamLogProbs:
    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._chosen: list[float] = []
        self._sums = [0.0]  # over the first i tokens
        self._top_ids: list[Ids] = []
        self._top: list[Floats] = []

    def append(self, scores: TokenLogProbs) -> None:
        self._chosen.append(scores.chosen)
        self._sums.append(self._sums[-1] + scores.chosen)
        self._top_ids.append(_filled(scores.top_ids[: self._num_top], self._num_top, -1))
        self._top.append(_filled(scores.top[: self._num_top], self._num_top, math.nan))

    def cut(self, num_tokens: int) -> None:
        """Forgets everything after the first `num_tokens` tokens."""
        for kept in (self._chosen, self._top_ids, self._top):
            del kept[num_tokens:]
        del self._sums[num_tokens + 1 :]

    def since(self, num_tokens: int) -> LogProbs:
        """Of all tokens after the first `num_tokens`."""
        top_ids = [np.zeros(0, np.int32), *self._top_ids[num_tokens:]]
        top = [np.zeros(0, np.float32), *self._top[num_tokens:]]
        return LogProbs(
            np.array(self._chosen[num_tokens:], np.float32), np.concatenate(top_ids), np.concatenate(top)
        )

    def sum(self, num_tokens: int) -> float:
        """Over the first `num_tokens` tokens."""
        return self._sums[num_tokens]


def _filled(values: Any, size: int, filler: float) -> Any:
    """A copy, which doesn't keep the frame alive in which `values` came."""
    return values.copy() if len(values) == size else np.full(size, filler, values.dtype)
