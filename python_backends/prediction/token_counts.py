"""What a prompt says before it is computed: how often it has which tokens.

The tokens fall into buckets by a hash of their ids, so that neither a vocabulary nor weights of the model are
needed. The logarithms of the counts and of the prompt's length are what the regression learns from. The log
keeps the buckets in ascending order: no text can be read back from them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Floats, Ids

WIDTH = 1024  # numbers: the buckets, and the length
MOST_TOKENS = 256  # the first and the last half of these
LAYER = 0  # what the numbers are called where hidden states have a layer

_MULTIPLIER, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(40)  # Fibonacci hashing (Knuth)


def buckets_of(prompt: Ids) -> Ids:
    """[at most MOST_TOKENS] ascending, each below WIDTH - 1."""
    half = MOST_TOKENS // 2
    read = prompt if len(prompt) <= MOST_TOKENS else np.concatenate([prompt[:half], prompt[-half:]])
    hashed = ((read.astype(np.uint64) + np.uint64(1)) * _MULTIPLIER) >> _SHIFT
    return np.sort((hashed % np.uint64(WIDTH - 1)).astype(np.int32))


def numbers_of(buckets: Ids | NDArray[np.uint16], num_tokens: int) -> Floats:
    """[WIDTH] of a prompt of `num_tokens` tokens."""
    numbers = np.log1p(np.bincount(buckets, minlength=WIDTH)).astype(np.float32)
    numbers[-1] = np.log(num_tokens)
    return numbers


def of_kept(buckets: bytes, num_tokens: int) -> Floats:
    """The same from what the log keeps of a prompt."""
    return numbers_of(np.frombuffer(buckets, "<u2"), num_tokens)


def kept(buckets: Ids) -> bytes:
    return buckets.astype("<u2").tobytes()
