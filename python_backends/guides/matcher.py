"""Which tokens may come next in one answer. Called by engines, between two steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

import numpy as np
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

WORD_BITS = 32


def num_words(vocab_size: int) -> int:
    """Of a mask."""
    return -(-vocab_size // WORD_BITS)


class Matcher:
    """Its state is a function of the tokens that it has taken. An end id may come where the answer is whole,
    and nowhere else. After an error (the grammar became too large on the way) no token may come.
    """

    def __init__(self, matcher: LLMatcher, stop_ids: Sequence[int]) -> None:
        """`matcher` is this one's own. `stop_ids`: end ids, and others, which end the answer too."""
        self._matcher = matcher
        ids = np.array(stop_ids, np.int64)
        # words that have stop ids, and which bits of them
        self._places = np.unique(ids // WORD_BITS)
        self._bits = np.zeros(len(self._places), np.uint32)
        np.bitwise_or.at(self._bits, np.searchsorted(self._places, ids // WORD_BITS), _bits(ids))

    def take(self, tokens: Sequence[int]) -> bool:
        """The answer goes on with `tokens`. Whether it may."""
        return not tokens or self._matcher.consume_tokens(list(tokens))

    def fill(self, words: NDArray[np.int32]) -> None:
        """Sets the bits of the tokens that may come next in `words` [num_words], and no others."""
        fill([self], words[None])

    def _finish(self, words: NDArray[np.uint32]) -> None:
        """Sets what llguidance does not know."""
        if self._matcher.is_error():
            words[:] = 0
        elif self._matcher.is_accepting():
            words[self._places] |= self._bits
        else:
            words[self._places] &= ~self._bits


def fill(matchers: Sequence[Matcher], words: NDArray[np.int32]) -> None:
    """Sets the bits of the tokens that may come next in each row of `words` [matchers, num_words], and no
    others. Where there are several, all processors compute.
    """
    assert words.flags.c_contiguous
    words[:] = 0
    row_bytes = words.shape[1] * words.itemsize
    # of one with an error nothing may be asked
    asked = [(each._matcher, row) for row, each in enumerate(matchers) if not each._matcher.is_error()]
    if len(asked) == 1:
        asked[0][0].unsafe_compute_mask_ptr(words[asked[0][1]].ctypes.data, row_bytes)
    elif asked:
        _threads().unsafe_compute_mask_ptr(asked, words.ctypes.data, row_bytes, len(words))
    for row, each in enumerate(matchers):
        each._finish(words[row].view(np.uint32))


def take(chosen: Sequence[tuple[Matcher, int]]) -> None:
    """Each answer goes on with its token; where that may not be, the matcher has an error."""
    if len(chosen) > 1:
        _threads().consume_token_par([(matcher._matcher, token) for matcher, token in chosen])
    elif chosen:
        chosen[0][0].take([chosen[0][1]])


@cache
def _threads() -> LLExecutor:
    return LLExecutor(len(os.sched_getaffinity(0)))


def _bits(tokens: NDArray[np.int64]) -> NDArray[np.uint32]:
    return np.uint32(1) << (tokens % WORD_BITS).astype(np.uint32)
