"""Log-probabilities of one stream's tokens, and of its prompt's, kept as long as its tokens are, so that they
survive the death of an instance.

Written by the stream alone.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass

import numpy as np

from python_backends.nouns.request import Floats, Ids, LogProbs, Request
from python_backends.nouns.step import RowLogProbs


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogProbs:
    """Of one token."""

    chosen: float
    top_ids: Ids  # [as many as any request of its step asks for]
    top: Floats


# from an engine that doesn't report them
UNKNOWN = TokenLogProbs(math.nan, np.zeros(0, np.int32), np.zeros(0, np.float32))
DELIVERED = TokenLogProbs(0.0, UNKNOWN.top_ids, UNKNOWN.top)  # the client has them already


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
    def __init__(self, num_top: int, num_delivered: int = 0) -> None:
        """The first `num_delivered` tokens have no values, and add nothing to the sum."""
        self._num_top = num_top
        # 12 bytes a token, and 8 for each top one
        self._chosen = array("f")
        self._sums = array("d", [0.0])  # over the first i tokens
        self._top_ids = array("i")  # [tokens · num_top]
        self._top = array("f")  # [tokens · num_top]
        for _ in range(num_delivered):
            self.append(DELIVERED)

    def append(self, scores: TokenLogProbs) -> None:
        self._chosen.append(scores.chosen)
        self._sums.append(self._sums[-1] + scores.chosen)
        num_lacking = self._num_top - len(scores.top_ids)
        self._top_ids.extend([*scores.top_ids[: self._num_top].tolist(), *[-1] * num_lacking])
        self._top.extend([*scores.top[: self._num_top].tolist(), *[math.nan] * num_lacking])

    def cut(self, num_tokens: int) -> None:
        """Forgets everything after the first `num_tokens` tokens."""
        del self._chosen[num_tokens:]
        for kept in (self._top_ids, self._top):
            del kept[num_tokens * self._num_top :]
        del self._sums[num_tokens + 1 :]

    def since(self, num_tokens: int) -> LogProbs:
        """Of all tokens after the first `num_tokens`."""
        first = num_tokens * self._num_top
        return LogProbs(
            np.array(self._chosen[num_tokens:], np.float32),
            np.array(self._top_ids[first:], np.int32),
            np.array(self._top[first:], np.float32),
        )

    def between(self, first: int, last: int) -> Floats:
        """[last - first] of the tokens from `first` up to and without `last`."""
        return np.array(self._chosen[first:last], np.float32)

    def sum(self, num_tokens: int) -> float:
        """Over the first `num_tokens` tokens."""
        return self._sums[num_tokens]


class PromptScores:
    """Log-probabilities of a prompt's tokens. A later life of the request that computes them again, because
    the answer has no token yet, gives the same ones.
    """

    def __init__(self, request: Request) -> None:
        """Prompts that wait take no memory: it comes with the first values."""
        self._count, self._num_top = len(request.prompt) - 1, request.sampling.num_top_log_probs
        self._begin(0)

    def _begin(self, count: int) -> None:
        self._chosen: Floats = np.full(count, np.nan, np.float32)
        self._top_ids: Ids = np.full((count, self._num_top), -1, np.int32)
        self._top: Floats = np.full((count, self._num_top), np.nan, np.float32)

    def put(self, indices: Ids, values: LogProbs) -> None:
        """Of tokens `indices` [n] of the prompt, none of them the first; `values` may have more of the most
        probable ones.
        """
        if len(self._chosen) < self._count:
            self._begin(self._count)
        shape, places = (len(indices), values.num_top), indices - 1
        self._chosen[places] = values.chosen
        self._top_ids[places] = values.top_ids.reshape(shape)[:, : self._num_top]
        self._top[places] = values.top.reshape(shape)[:, : self._num_top]

    def whole(self) -> LogProbs | None:
        """None: the stream has ended before its prompt was computed."""
        if len(self._chosen) < self._count or np.isnan(self._chosen).any():
            return None
        return LogProbs(self._chosen, self._top_ids.ravel(), self._top.ravel())
