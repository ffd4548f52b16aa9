"""Penalties for tokens that were there before: repetition counts prompt and output, presence and frequency
count the output alone.

The conventions are transformers' (repetition: a positive logit is divided by it, a negative one multiplied)
and those of OpenAI and vLLM (presence once, frequency for each time); they come before temperature. Owns
nothing; called by the sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """Of rows with nearly as many tokens: each is as much work as the longest."""

    rows: Tensor  # [penalized] of the batch
    tokens: Tensor  # [penalized, most] all tokens so far; the first one again after a row's end
    is_output: Tensor  # [penalized, most]
    repetition: Tensor  # [penalized] 1: none
    presence: Tensor  # [penalized] 0: none
    frequency: Tensor  # [penalized] 0: none


def penalized(logits: Tensor, groups: Sequence[Penalties]) -> Tensor:
    """A copy of `logits` [rows, vocabulary] in float32. A row is in one group at most. Work grows with the
    tokens so far, not with the vocabulary.
    """
    logits = logits.to(torch.float32, copy=True)
    for penalties in groups:
        some, tokens = logits[penalties.rows], penalties.tokens
        scores = some.gather(1, tokens)
        repetition = penalties.repetition[:, None]
        scores = torch.where(scores > 0, scores / repetition, scores * repetition)
        counts = torch.zeros_like(some).scatter_add_(1, tokens, penalties.is_output.float())
        counts = counts.gather(1, tokens)
        scores -= penalties.frequency[:, None] * counts
        scores -= penalties.presence[:, None] * (counts > 0)
        logits.index_copy_(0, penalties.rows, some.scatter_(1, tokens, scores))
    return logits
