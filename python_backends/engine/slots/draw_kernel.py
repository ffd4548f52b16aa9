"""Draws tokens, one launch for all rows of a step, as a kernel in the Triton language: temperature, top_k,
top_p, min_p and the seed are read from the slot state, and nothing is asked on the host.

The sampler's operators and `noise.py` say what is drawn. A program takes one row, reads its logits
again for each question and keeps nothing: weights exp((logit − greatest) / temperature) are no less than 0,
so their bits have the same order, and the least weight that stays is found by halving the interval of bits.
Both ends jump to weights that exist, so most rows take half of the thirty halvings. Owns nothing; imported
only where it runs (see `kernel_trial`), and called by the sampler.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from python_backends.engine.slots.columns import Column, Share
from python_backends.nouns.request import LEAST_TEMPERATURE

TILE = 8192
WARPS = 16
NOISE_TILE = tl.constexpr(2048)  # whose hashes and float64 logarithms fit into the registers


def draw(logits: Tensor, slots: Tensor, counts: Tensor, shares: Tensor) -> Tensor:
    """Tokens [rows] for logits [rows, vocabulary]; of `slots` [rows] the `counts` and `shares` [slots,
    columns] say how. Rows of a temperature below LEAST_TEMPERATURE take the greatest logit.
    """
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    _draw[(len(logits),)](
        logits,
        slots,
        counts,
        shares,
        tokens,
        logits.shape[1],
        logits.stride(0),
        COUNTS=counts.shape[1],
        SHARES=shares.shape[1],
        COLUMNS=tuple(int(column) for column in COLUMNS),
        FRACTIONS=tuple(int(share) for share in FRACTIONS),
        LEAST=LEAST_TEMPERATURE,
        TILE=min(TILE, triton.next_power_of_2(logits.shape[1])),
        num_warps=WARPS,
    )
    return tokens


COLUMNS = (Column.SEED, Column.OUTPUTS, Column.TOP_K)
FRACTIONS = (Share.TEMPERATURE, Share.TOP_P, Share.MIN_P)


@triton.jit  # type: ignore[untyped-decorator]
def _draw(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    logits,
    slots,
    counts,
    shares,
    tokens,
    width,
    stride,
    COUNTS: tl.constexpr,  # noqa: N803
    SHARES: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    FRACTIONS: tl.constexpr,  # noqa: N803
    LEAST: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    first, slot = logits + row * stride, tl.load(slots + row)
    counts += slot * COUNTS
    shares += slot * SHARES
    temperature = tl.load(shares + FRACTIONS[0])
    most, best = _greatest(first, width, TILE)
    if temperature < LEAST:
        tl.store(tokens + row, best)
        return
    wanted, share = tl.load(counts + COLUMNS[2]), tl.load(shares + FRACTIONS[1])
    least = tl.full((), 0, tl.int32)
    if wanted > 0:
        least = _least(first, width, most, temperature, least, wanted.to(tl.float64), True, TILE)
    if share < 1:
        mass = _mass(first, width, most, temperature, least, TILE)
        least = _least(first, width, most, temperature, least, share.to(tl.float64) * mass, False, TILE)
    smallest = tl.load(shares + FRACTIONS[2]).to(tl.int32, bitcast=True)
    least = tl.maximum(least, smallest)  # the greatest weight is 1
    seed = tl.load(counts + COLUMNS[0]).to(tl.uint64, bitcast=True)
    key = _mixed(_mixed(seed) + tl.load(counts + COLUMNS[1]).to(tl.uint64) * 0x9E3779B97F4A7C15)
    tl.store(tokens + row, _winner(first, width, most, temperature, least, key, min(TILE, NOISE_TILE)))


@triton.jit  # type: ignore[untyped-decorator]
def _greatest(first, width, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The greatest logit and its lowest id."""
    column = tl.arange(0, TILE)
    greatest, at = tl.full((TILE,), float("-inf"), tl.float32), tl.zeros((TILE,), tl.int32)
    for start in range(0, width, TILE):
        here = start + column
        each = tl.load(first + here, mask=here < width, other=float("-inf")).to(tl.float32)
        at = tl.where(each > greatest, here, at)
        greatest = tl.maximum(greatest, each)
    most = tl.max(greatest, 0)
    return most, tl.min(tl.where(greatest == most, at, width - 1), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _weights(first, start, width, most, temperature, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """A tile of weights, and their bits; −1 outside."""
    here = start + tl.arange(0, TILE)
    each = tl.load(first + here, mask=here < width, other=0.0).to(tl.float32)
    weights = tl.exp((each - most) / temperature)
    return weights, tl.where(here < width, weights.to(tl.int32, bitcast=True), -1)


@triton.jit  # type: ignore[untyped-decorator]
def _mass(first, width, most, temperature, least, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The sum in float64 of the weights whose bits are no less than `least`."""
    sums = tl.zeros((TILE,), tl.float64)
    for start in range(0, width, TILE):
        weights, bits = _weights(first, start, width, most, temperature, TILE)
        sums += tl.where(bits >= least, weights, 0.0).to(tl.float64)
    return tl.sum(sums, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _least(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    first,
    width,
    most,
    temperature,
    low,
    wanted,
    COUNTS_THEM: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """The bits of the greatest weight that is no less than `low` and above which, itself included, the mass
    or the number of weights is no less than `wanted`; `low` if there is none.

    `low` leaves enough, `high` does not; both move to the next weights that exist.
    """
    one: tl.constexpr = 0x3F800000  # the bits of 1.0, the greatest weight
    high = tl.full((), one + 1, tl.int32)
    while high - low > 1:
        middle = low + (high - low) // 2
        sums = tl.zeros((TILE,), tl.float64)
        above, below = tl.full((TILE,), one, tl.int32), tl.full((TILE,), 0, tl.int32)
        for start in range(0, width, TILE):
            weights, bits = _weights(first, start, width, most, temperature, TILE)
            is_above = bits >= middle
            sums += tl.where(is_above, 1.0 if COUNTS_THEM else weights, 0.0).to(tl.float64)
            above = tl.where(is_above, tl.minimum(above, bits), above)
            below = tl.where(is_above, below, tl.maximum(below, bits))
        is_enough = tl.sum(sums, 0) >= wanted
        low = tl.where(is_enough, tl.min(above, 0), low)
        high = tl.where(is_enough, high, tl.max(below, 0) + 1)
    return low


@triton.jit  # type: ignore[untyped-decorator]
def _winner(first, width, most, temperature, least, key, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803, PLR0913
    """The id with the greatest sum of score and noise among those whose weights stay."""
    column = tl.arange(0, TILE)
    greatest, at = tl.full((TILE,), float("-inf"), tl.float64), tl.zeros((TILE,), tl.int32)
    for start in range(0, width, TILE):
        here = start + column
        _, bits = _weights(first, start, width, most, temperature, TILE)
        scores = tl.load(first + here, mask=here < width, other=float("-inf")).to(tl.float32) / temperature
        sums = scores.to(tl.float64) + _noise(key, here)
        is_greater = (bits >= least) & (sums > greatest)
        at = tl.where(is_greater, here, at)
        greatest = tl.where(is_greater, sums, greatest)
    return tl.min(tl.where(greatest == tl.max(greatest, 0), at, width - 1), 0)


@triton.jit
def _noise(key, ids):  # type: ignore[no-untyped-def]
    """As the `Noise` of `noise.py`, in blocks of 64 ids."""
    blocks = (ids // 64 + 1).to(tl.uint64)
    block_bits = _mixed(key - blocks * 0x9E3779B97F4A7C15)
    token_bits = _mixed(key + (ids + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
    is_earliest = (block_bits & 63) == (ids % 64).to(tl.uint64)
    later_s = tl.where(is_earliest, 0.0, _exponential(token_bits))
    return -tl.log(_exponential(block_bits) / 64 + later_s)


@triton.jit
def _exponential(bits):  # type: ignore[no-untyped-def]
    return -tl.log(((bits >> 16).to(tl.int64).to(tl.float64) + 0.5) * 3.552713678800501e-15)  # 2^−48


@triton.jit
def _mixed(bits):  # type: ignore[no-untyped-def]
    bits = bits + 0x9E3779B97F4A7C15
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)
