"""Chooses the next token of every sampling row, on the device, for all rows at once.

Owns nothing. In this order: biases, penalties, bans, guides, temperature, top_k, top_p, min_p, the draw; a
step that no row asks for is skipped. Rows of temperature 0, or of one too small to divide by, take the
greatest logit, the lowest id among equals. The others draw by noise hashed from (seed, output index,
token id) alone (`noise.py`): the same logits give the same token in any batch and after a restart.
Whether logits are the same in any batch is up to the engine and its device: libraries of a GPU choose how to
multiply by the number of rows, and in bfloat16 such differences change tokens. Equal probabilities at the
edge of top_k or top_p are kept together. Called by the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from python_backends.engine.slots.allowed import Allowed, only_allowed
from python_backends.engine.slots.biases import Biases, biased
from python_backends.engine.slots.log_probs import LogProbRows
from python_backends.engine.slots.noise import drawn, keys
from python_backends.engine.slots.penalties import Penalties, penalized

# sizes tried before sorting a whole vocabulary, which costs as much as a small model's step
CANDIDATES = (64, 1024)


@dataclass(frozen=True, slots=True)
class Restrictions:
    top_k: Tensor  # [drawing] 0: all
    top_p: Tensor  # [drawing] 1: all
    min_p: Tensor  # [drawing] 0: all

    def of(self, rows: Tensor) -> Restrictions:
        return Restrictions(self.top_k[rows], self.top_p[rows], self.min_p[rows])


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
    penalties: Sequence[Penalties] = ()  # empty: no row has any
    biases: Biases | None = None  # None: no row has any
    allowed: Allowed | None = None  # the only tokens of some rows; None: no row follows a guide
    asks: LogProbRows | None = None  # for log-probabilities, which change no token; None: no row asks

    @property
    def take_greatest(self) -> bool:
        """Whether each row takes the greatest logit as it is, of the tokens that its guide allows."""
        others = (self.draws, self.banned, self.biases)
        return not self.penalties and all(each is None for each in others)


GREEDY = SamplingRows()


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Tokens [rows] for logits [rows, vocabulary] of any engine."""
    if rows.biases is not None:
        logits = biased(logits, rows.biases)
    if rows.penalties:
        logits = penalized(logits, rows.penalties)
    if rows.banned is not None:
        logits = logits.masked_fill(_marked(rows.banned, logits.shape[1]), float("-inf"))
    if rows.allowed is not None:
        logits = only_allowed(logits, rows.allowed)
    if rows.draws is None:
        return _best(logits)
    if isinstance(rows.draws, SlotDraws):
        from python_backends.engine.slots.draw_kernel import draw  # brings Triton's language

        return draw(logits, rows.draws.slots, rows.draws.counts, rows.draws.shares)
    logits, drawing = logits.float(), rows.draws.rows
    best = _best(logits)
    if len(drawing) == len(logits):
        return _drawn(logits, best, rows.draws)
    some, their_best = logits.index_select(0, drawing), best.index_select(0, drawing)
    return best.index_copy_(0, drawing, _drawn(some, their_best, rows.draws))


def restricted(scores: Tensor, limits: Restrictions) -> Tensor:
    """`scores` [rows, vocabulary] with −inf for everything outside top_k, then outside the smallest set of
    mass top_p of what is left, or less probable than min_p times the most probable.
    """
    probs = torch.softmax(scores, -1)
    return scores.masked_fill(probs < _least_by_candidates(probs, limits)[:, None], float("-inf"))


def _drawn(logits: Tensor, best: Tensor, draws: Draws) -> Tensor:
    """Tokens [drawing] for the float32 logits [drawing, vocabulary] of the rows that draw; `best` [drawing]
    have the greatest logits.
    """
    scores = logits / draws.temperature[:, None]
    if draws.restrictions is not None:
        scores = restricted(scores, draws.restrictions)
    row_keys = keys(draws.seeds.cpu().numpy(), draws.indices.cpu().numpy())
    tokens = drawn(scores.cpu().numpy(), best.cpu().numpy(), row_keys)
    return torch.as_tensor(tokens, device=logits.device)


def _best(logits: Tensor) -> Tensor:
    """Lowest id of the greatest logit. On a CPU by numpy, which is quicker (docs/notebook/cpu_steps.md)."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    return torch.as_tensor(logits.float().numpy().argmax(-1))


def _marked(ids: Tensor, vocabulary: int) -> Tensor:
    """[rows, vocabulary] True at `ids` [rows, n]; −1 marks nothing."""
    marks = torch.zeros((len(ids), vocabulary + 1), dtype=torch.bool, device=ids.device)
    return marks.scatter_(1, torch.where(ids < 0, vocabulary, ids), True)[:, :vocabulary]


def _least_by_candidates(probs: Tensor, limits: Restrictions) -> Tensor:
    """The smallest probability [rows] that stays.

    Looks at the few most probable ids first; more are needed for flat rows, which is asked on the host.
    """
    sizes = (*(size for size in CANDIDATES if size < probs.shape[1]), probs.shape[1])
    least, enough = _least_among(probs, sizes[0], limits)
    for size in sizes[1:]:
        rows = (~enough).nonzero()[:, 0]
        if not len(rows):
            break
        least[rows], enough[rows] = _least_among(probs[rows], size, limits.of(rows))
    return least


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
