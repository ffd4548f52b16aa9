"""What a prompt says before it is computed: how often it has which tokens, and with which adapter.

The tokens, and the adapter, fall into buckets by a hash, so that neither a vocabulary nor weights of the
model are needed. The logarithms of the counts and of the prompt's length are what the regression learns from.
The log keeps the buckets in ascending order: no text can be read back from them.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Floats, Ids

WIDTH = 1024  # numbers: the buckets, and the length
MOST_TOKENS = 256  # the first and the last half of these
LAYER = 0  # what the numbers are called where hidden states have a layer

_MULTIPLIER, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(40)  # Fibonacci hashing (Knuth)


def buckets_of(prompt: Ids, adapter: str = "") -> Ids:
    """[at most MOST_TOKENS, and one of the adapter] ascending, each below WIDTH - 1. `adapter`: the digest of
    its content; empty: none.
    """
    half = MOST_TOKENS // 2
    read = prompt if len(prompt) <= MOST_TOKENS else np.concatenate([prompt[:half], prompt[-half:]])
    hashed = ((read.astype(np.uint64) + np.uint64(1)) * _MULTIPLIER) >> _SHIFT
    buckets = (hashed % np.uint64(WIDTH - 1)).astype(np.int32)
    if adapter:
        buckets = np.append(buckets, np.int32(zlib.crc32(adapter.encode()) % (WIDTH - 1)))
    return np.sort(buckets)


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
