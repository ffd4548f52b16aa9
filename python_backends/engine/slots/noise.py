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
        blocks = np.arange(width // BLOCK)
        bits = _mixed(keys[:, None] - _GOLDEN * (1 + blocks).astype(np.uint64))  # [rows, blocks]
        self._keys = keys
        self._earliest_s = _exponential(bits) / BLOCK
        self.greatest = -np.log(self._earliest_s)  # [rows, blocks] noise of the earliest token of each block
        self.earliest = (bits % np.uint64(BLOCK)).astype(np.int64) + BLOCK * blocks  # [rows, blocks] its id

    def of(self, rows: Places, ids: Places) -> Array:
        """[n], of `ids` [n] in `rows` [n]."""
        blocks = ids // BLOCK
        later_s = _exponential(_mixed(self._keys[rows] + _GOLDEN * (1 + ids).astype(np.uint64)))
        later_s[self.earliest[rows, blocks] == ids] = 0.0
        times_s: Array = self._earliest_s[rows, blocks] + later_s
        return -np.log(times_s)


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
    sums = scores[rows, ids] + noise.of(rows, ids)
    order = np.lexsort((sums, rows))  # of each row the greatest sum is last
    rows, ids = rows[order], ids[order]
    is_last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
    tokens = np.zeros(num_rows, np.int64)
    tokens[rows[is_last]] = ids[is_last]
    return np.minimum(tokens, vocabulary - 1)


def _may_win(scores: Floats, best: Places, noise: Noise) -> tuple[Places, Places]:
    """(rows, ids), each [n]: tokens of which one has the greatest sum of its row. Other tokens' sums are less
    than one that is known, of the token with the best score or of the earliest token of a block.
    """
    rows = np.arange(len(scores))
    known = (np.take_along_axis(scores, noise.earliest, 1) + noise.greatest).max(1)
    known = np.maximum(known, scores[rows, best] + noise.of(rows, best))
    least = (known[:, None] - noise.greatest - ROUNDING).astype(np.float32)
    by_block = scores.reshape(len(scores), -1, BLOCK)
    return np.divmod(np.flatnonzero(by_block >= least[:, :, None]), scores.shape[1])


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def _exponential(bits: Keys) -> Array:
    """Exponentially distributed with mean 1, greater than 0, of hashes."""
    uniform: Array = ((bits >> np.uint64(64 - TIME_BITS)) + 0.5) * 2.0**-TIME_BITS
    return -np.log(uniform)


def _mixed(bits: Keys) -> Keys:
    bits = bits + _GOLDEN
    for shift, factor in _MIX:
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits
