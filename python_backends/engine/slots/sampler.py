"""Chooses the next token of every sampling row, on the device, for all rows at once.

Owns nothing. In this order: penalties, bans, temperature, top_k, top_p, min_p, the draw; a step that no row
asks for is skipped. Rows of temperature 0, or of one too small to divide by, take the greatest logit, the
lowest id among equals. The others draw by inverse CDF over the ids in their order, with one uniform number
hashed from (seed, output index) alone: the same logits give the same token in any batch and after a restart.
Whether logits are the same in any batch is up to the engine and its device: libraries of a GPU choose how to
multiply by the number of rows, and in bfloat16 such differences change tokens. Equal probabilities at the
edge of top_k or top_p are kept together. Called by the engines.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from python_backends.engine.slots.log_probs import LogProbRows
from python_backends.engine.slots.penalties import Penalties, penalized

UNIFORM_BITS = 48  # so that u · total < total in float64 for every u < 1
# sizes tried before sorting a whole vocabulary, which costs as much as a small model's step
CANDIDATES = (64, 1024)


@dataclass(frozen=True, slots=True)
class Restrictions:
    top_k: Tensor  # [drawing] 0: all
    top_p: Tensor  # [drawing] 1: all
    min_p: Tensor  # [drawing] 0: all


@dataclass(frozen=True, slots=True)
class Draws:
    """Of the rows that draw."""

    rows: Tensor  # [drawing] of the batch
    temperature: Tensor  # [drawing]
    seeds: Tensor  # [drawing] int64
    indices: Tensor  # [drawing] output index of the token to be drawn
    restrictions: Restrictions | None  # None: no row has any


@dataclass(frozen=True, slots=True)
class SlotDraws:
    """Of all rows, where kernels run: each is drawn as the tables of the slot state say."""

    slots: Tensor  # [rows]
    counts: Tensor  # [slots, columns]
    shares: Tensor  # [slots, columns]


@dataclass(frozen=True, slots=True)
class SamplingRows:
    draws: Draws | SlotDraws | None = None  # None: all rows are greedy
    banned: Tensor | None = None  # [rows, most] ids that may not come now; −1 bans none, None no id at all
    penalties: Penalties | None = None  # None: no row has any
    asks: LogProbRows | None = None  # for log-probabilities, which change no token; None: no row asks


GREEDY = SamplingRows()


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Tokens [rows] for logits [rows, vocabulary] of any engine."""
    if rows.penalties is not None:
        logits = penalized(logits, rows.penalties)
    if rows.banned is not None:
        logits = logits.masked_fill(_marked(rows.banned, logits.shape[1]), float("-inf"))
    if rows.draws is None:
        return _best(logits)
    if isinstance(rows.draws, SlotDraws):
        from python_backends.engine.slots.draw_kernel import draw  # brings Triton's language

        return draw(logits, rows.draws.slots, rows.draws.counts, rows.draws.shares)
    logits = logits.float()
    return _best(logits).index_copy_(0, rows.draws.rows, _drawn(logits[rows.draws.rows], rows.draws))


def uniform(seeds: Tensor, indices: Tensor) -> Tensor:
    """One number in [0, 1) per row, float64, of (seed, index): two rounds
    of splitmix64's mixing in wrapping int64.
    """
    bits = _mix(_mix(seeds) + indices * _GOLDEN)
    return _shifted(bits, 64 - UNIFORM_BITS).double() * 2.0**-UNIFORM_BITS


def probabilities(logits: Tensor, temperature: Tensor) -> Tensor:
    """[rows, vocabulary] float32"""
    return torch.softmax(logits / temperature[:, None], -1)


def restricted(probs: Tensor, limits: Restrictions) -> Tensor:
    """`probs` with everything set to 0 that is outside top_k, then outside the smallest set of mass top_p of
    what is left, or less probable than min_p times the most probable.
    """
    return probs.masked_fill(probs < _least_by_candidates(probs, limits)[:, None], 0.0)


def _drawn(logits: Tensor, draws: Draws) -> Tensor:
    """Tokens [drawing] for the logits [drawing, vocabulary] of the rows that draw."""
    probs = probabilities(logits, draws.temperature)
    if draws.restrictions is not None:
        probs = restricted(probs, draws.restrictions)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    target = uniform(draws.seeds, draws.indices)[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return drawn.clamp(max=logits.shape[1] - 1)  # logits that are not numbers affect their own row alone


def _best(logits: Tensor) -> Tensor:
    """Lowest id of the greatest logit. On a CPU by numpy, which is quicker (docs/notebook/cpu_steps.md)."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    return torch.as_tensor(logits.float().numpy().argmax(-1))


_GOLDEN = -0x61C8864680B583EB  # splitmix64's constants, as signed numbers
_MIX = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1))


def _mix(bits: Tensor) -> Tensor:
    bits = bits + _GOLDEN
    for shift, factor in _MIX:
        bits = (bits ^ _shifted(bits, shift)) * factor
    return bits


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Logical right shift of int64."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _marked(ids: Tensor, vocabulary: int) -> Tensor:
    """[rows, vocabulary] True at `ids` [rows, n]; −1 marks nothing."""
    marks = torch.zeros((len(ids), vocabulary + 1), dtype=torch.bool, device=ids.device)
    return marks.scatter_(1, torch.where(ids < 0, vocabulary, ids), True)[:, :vocabulary]


def _least_by_candidates(probs: Tensor, limits: Restrictions) -> Tensor:
    """The smallest probability [rows] that stays.

    Looks at the few most probable ids first; more are needed for flat rows, which is asked on the host.
    """
    sizes = [size for size in CANDIDATES if size < probs.shape[1]]
    for size in sizes:
        least, enough = _least_among(probs, size, limits)
        if bool(enough.all()):
            return least
    return _least_among(probs, probs.shape[1], limits)[0]


def _least_among(probs: Tensor, size: int, limits: Restrictions) -> tuple[Tensor, Tensor]:
    """(smallest probability that stays, whether the `size` most probable
    ids were enough to know it), each [rows].
    """
    top = probs.topk(size).values  # [rows, size], descending
    kth = top.gather(1, (limits.top_k.clamp(1, size) - 1)[:, None])
    kth = torch.where(limits.top_k[:, None] > 0, kth, 0.0)  # [rows, 1]
    total = probs.masked_fill(probs < kth, 0.0).sum(-1, dtype=torch.float64)
    mass = top.masked_fill(top < kth, 0.0).cumsum(-1, dtype=torch.float64)
    wanted = (limits.top_p * total)[:, None]
    last = torch.searchsorted(mass, wanted).clamp(max=size - 1)  # the one that reaches the wanted mass
    nucleus = limits.top_p < 1
    least = torch.where(nucleus, torch.maximum(top.gather(1, last), kth)[:, 0], kth[:, 0])
    least = torch.maximum(least, limits.min_p * top[:, 0])
    return least, (limits.top_k <= size) & (~nucleus | (mass[:, -1] >= wanted[:, 0]))
