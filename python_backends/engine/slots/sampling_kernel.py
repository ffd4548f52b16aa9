"""The least probability that top_k, top_p and min_p leave in each row, as a kernel in the Triton language,
without a question to the host.

Probabilities are no less than 0, so their bits have the same order, and the bound is found by halving: a row
is read thirty times, out of the device's cache. What the bound is `restricted` of the sampler says. Owns
nothing; imported only where it runs (`runs_kernels` of `kernel_trial`), and called by the sampler.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 8192
WARPS = 16


def least_kept(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """[rows] for probs [rows, vocabulary] float32 and limits [rows] as in `Restrictions`."""
    least = torch.empty(len(probs), dtype=torch.float32, device=probs.device)
    limits = (top_k.contiguous(), top_p.contiguous(), min_p.contiguous())
    tile = min(TILE, triton.next_power_of_2(probs.shape[1]))
    _least_kept[(len(probs),)](
        probs, *limits, least, probs.shape[1], probs.stride(0), TILE=tile, num_warps=WARPS
    )
    return least


@triton.jit(do_not_specialize_on_alignment=["top_k", "top_p", "min_p"])  # type: ignore[untyped-decorator]
def _least_kept(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    probs,
    top_k,
    top_p,
    min_p,
    least,
    width,
    stride,
    TILE: tl.constexpr,  # noqa: N803
):
    """One row. `low` is the bits of a probability that leaves enough, `high` of one that leaves too little.

    The limits of a single row are a view of the slot state, at any alignment; those of several are not.
    """
    row = tl.program_id(0).to(tl.int64)
    first, column = probs + row * stride, tl.arange(0, TILE)
    wanted_count, share = tl.load(top_k + row), tl.load(top_p + row)
    greatest = tl.zeros((TILE,), tl.float32)
    for start in range(0, width, TILE):
        greatest = tl.maximum(
            greatest, tl.load(first + start + column, mask=start + column < width, other=0.0)
        )
    most = tl.max(greatest, 0)
    low = most.to(tl.int32, bitcast=True) * 0
    high = most.to(tl.int32, bitcast=True) + 1
    if wanted_count > 0:
        while high - low > 1:
            middle = (low + high) // 2
            counts = tl.zeros((TILE,), tl.int32)
            for start in range(0, width, TILE):
                bits = tl.load(first + start + column, mask=start + column < width, other=-1.0).to(
                    tl.int32, bitcast=True
                )
                counts += (bits >= middle).to(tl.int32)
            enough = tl.sum(counts, 0) >= wanted_count
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
    if share < 1:
        total = _mass(first, width, low, column, TILE)
        high = most.to(tl.int32, bitcast=True) + 1
        while high - low > 1:
            middle = (low + high) // 2
            enough = _mass(first, width, middle, column, TILE) >= share.to(tl.float64) * total
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
    tl.store(least + row, tl.maximum(low.to(tl.float32, bitcast=True), tl.load(min_p + row) * most))


@triton.jit  # type: ignore[untyped-decorator]
def _mass(first, width, least, column, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The sum in float64 of the probabilities whose bits are no less than `least`."""
    sums = tl.zeros((TILE,), tl.float64)
    for start in range(0, width, TILE):
        each = tl.load(first + start + column, mask=start + column < width, other=0.0)
        sums += tl.where(each.to(tl.int32, bitcast=True) >= least, each, 0.0).to(tl.float64)
    return tl.sum(sums, 0)
