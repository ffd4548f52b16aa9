"""Whether the logits of a row are numbers that a token can be chosen by: where they are not, the row's
request fails alone, instead of getting one token for ever.

Looked at are the model's logits, before penalties, bans and temperature. Single ones may be −inf, for a head
that can't write some tokens; all equal ones are what a norm leaves of hidden states that are too large. A row
of which every possible token is banned fails as well, as does one that got a token that its guide does not
allow: none was allowed. Owns nothing. Called by the engines.
"""

from __future__ import annotations

from torch import Tensor

from python_backends.engine.slots.allowed import are_allowed
from python_backends.engine.slots.sampler import GREEDY, SamplingRows
from python_backends.nouns.request import Finish

# Of a logit: a greater one comes from weights that are wrong, and may be infinite divided by a temperature.
MOST = 1e30


def are_numbers(logits: Tensor) -> Tensor:
    """[rows] of `logits` [rows, vocabulary]. On a CPU, torch's `aminmax` takes 30 times as long as both."""
    greatest, least = logits.amax(-1), logits.amin(-1)
    return (greatest.abs() < MOST) & (least < greatest)


def fail_others(result: Tensor, logits: Tensor, tokens: Tensor, rows: SamplingRows = GREEDY) -> Tensor:
    """`result` [2, rows], tokens and finishes, with ERROR for each row whose `tokens` [rows] can't have been
    chosen by its `logits` [rows, vocabulary].
    """
    good = are_numbers(logits)
    if rows.banned is not None:
        good &= (rows.banned != tokens[:, None]).all(1) & (_of(tokens, logits).abs() < MOST)
    if rows.allowed is not None:
        guided = rows.allowed.rows
        may = are_allowed(tokens, rows.allowed) & (_of(tokens, logits)[guided].abs() < MOST)
        good.index_copy_(0, guided, good[guided] & may)
    result[1].masked_fill_(~good, int(Finish.ERROR))
    return result


def _of(tokens: Tensor, logits: Tensor) -> Tensor:
    """[rows]"""
    return logits.gather(1, tokens[:, None])[:, 0]
