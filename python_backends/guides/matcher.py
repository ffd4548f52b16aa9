"""Which tokens may come next in one answer. Called by engines, between two steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
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
        matcher, bits = self._matcher, words.view(np.uint32)
        if matcher.is_error():  # nothing may be asked of it
            words[:] = 0
            return
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if matcher.is_error():
            words[:] = 0
        elif matcher.is_accepting():
            bits[self._places] |= self._bits
        else:
            bits[self._places] &= ~self._bits


def _bits(tokens: NDArray[np.int64]) -> NDArray[np.uint32]:
    return np.uint32(1) << (tokens % WORD_BITS).astype(np.uint32)
