"""Draws by noise: of each row the token with the greatest sum of its score, which is its logit / temperature,
and Gumbel noise of its own (the Gumbel-max trick; Maddison, Tarlow and Minka, "A* Sampling", 2014).

The noise is hashed from (seed, output index, token id) alone, so rounding of logits changes a token only
where the two greatest sums are as close as the rounding (measured: docs/notebook/drawing.md).

Noise is −log of a time that is exponentially distributed: each token arrives once, the more probable ones
earlier. Of each block of BLOCK ids one hash gives the earliest time and the token that has it; times of the
others are later by an exponential time of their own, because such times have no memory. So few tokens need a
hash: those whose score is so high that they may win even with the earliest time of their block.
By numpy, whose many small operations are quicker than torch's. Owns nothing. Called by the sampler;
`draw_kernel.py` computes the same on a GPU.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Floats

BLOCK = 64  # ids; a power of 2
TIME_BITS = 48  # of a hash; an earliest time is at least 2^−49 / BLOCK
ROUNDING = 1e-4  # of a threshold for float32 scores: lower by this, it leaves out no token that may win

Keys = NDArray[np.uint64]
Array = NDArray[np.float64]
Places = NDArray[np.int64]


class Noise:
    """The noise of a step: of `keys` [rows], for `width` ids, a multiple of BLOCK."""

    def __init__(self, keys: Keys, width: int) -> None:
        first, steps = _blocks(width // BLOCK)
        bits = _mixed(keys[:, None] - steps)  # [rows, blocks]
        self._keys, self._num_blocks = keys, len(first)
        self._earliest_s = _exponential(bits)
        self._earliest_s /= BLOCK
        self.greatest = -np.log(self._earliest_s)  # [rows, blocks] noise of the earliest token of each block
        bits &= _IN_BLOCK
        self.earliest = bits.view(np.int64)  # [rows, blocks] its id
        self.earliest += first

    def of(self, rows: Places, ids: Places) -> Array:
        """[n], of `ids` [n] in `rows` [n]."""
        blocks = rows * self._num_blocks + ids // BLOCK
        later_s = _exponential(_mixed(self._keys[rows] + _GOLDEN * (1 + ids).astype(np.uint64)))
        later_s[self.earliest.take(blocks) == ids] = 0.0
        later_s += self._earliest_s.take(blocks)
        return _minus_log(later_s)


def keys(seeds: NDArray[np.int64], indices: Places) -> Keys:
    """[rows] of `seeds` [rows] and output `indices` [rows]: two rounds of splitmix64's mixing."""
    return _mixed(_mixed(seeds.view(np.uint64)) + indices.astype(np.uint64) * _GOLDEN)


def drawn(scores: Floats, best: Places, row_keys: Keys) -> Places:
    """Tokens [rows] for `scores` [rows, vocabulary], of which `best` [rows] have the greatest; −inf is never
    drawn. A row with scores that are not numbers gets any token; other rows don't notice.
    """
    num_rows, vocabulary = scores.shape
    if vocabulary % BLOCK:
        scores = np.pad(scores, ((0, 0), (0, -vocabulary % BLOCK)), constant_values=-np.inf)
    noise = Noise(row_keys, scores.shape[1])
    rows, ids = _may_win(scores, best, noise)
    order = np.argsort(scores[rows, ids] + noise.of(rows, ids), kind="stable")
    tokens = np.zeros(num_rows, np.int64)
    tokens[rows[order]] = ids[order]  # of each row the last stays, which has the greatest sum
    return np.minimum(tokens, vocabulary - 1)


def _may_win(scores: Floats, best: Places, noise: Noise) -> tuple[Places, Places]:
    """(rows, ids), each [n]: tokens of which one has the greatest sum of its row. Other tokens' sums are less
    than one that is known, of the token with the best score or of the earliest token of a block.
    """
    rows = np.arange(len(scores))
    known = (scores[rows[:, None], noise.earliest] + noise.greatest).max(1)
    known = np.maximum(known, scores[rows, best] + noise.of(rows, best))
    least = (known[:, None] - noise.greatest - ROUNDING).astype(np.float32)
    by_block = scores.reshape(len(scores), -1, BLOCK)
    return np.divmod(np.flatnonzero(by_block >= least[:, :, None]), scores.shape[1])


_IN_BLOCK = np.uint64(BLOCK - 1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT, _TIME_SHIFT = np.uint64(31), np.uint64(64 - TIME_BITS)


@functools.cache
def _blocks(count: int) -> tuple[Places, Keys]:
    """The first id of each block, and what its hash is apart from the row's key."""
    blocks = np.arange(count)
    return blocks * BLOCK, _GOLDEN * (1 + blocks).astype(np.uint64)


def _exponential(bits: Keys) -> Array:
    """Exponentially distributed with mean 1, greater than 0, of hashes."""
    uniform: Array = (bits >> _TIME_SHIFT) + 0.5
    uniform *= 2.0**-TIME_BITS
    return _minus_log(uniform)


def _minus_log(values: Array) -> Array:
    """In the memory of `values`."""
    np.log(values, out=values)
    return np.negative(values, out=values)


def _mixed(bits: Keys) -> Keys:
    bits = bits + _GOLDEN
    for shift, factor in _MIX:
        bits ^= bits >> shift
        bits *= factor
    bits ^= bits >> _LAST_SHIFT
    return bits
