"""Penalties for tokens that were there before: repetition counts prompt and output, presence and frequency
count the output alone.

The conventions are transformers' (repetition: a positive logit is divided by it, a negative one multiplied)
and those of OpenAI and vLLM (presence once, frequency for each time); they come before temperature. Owns
nothing; called by the sampler.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    rows: Tensor  # [penalized] of the batch
    tokens: Tensor  # [penalized, most] all tokens so far; the first one again after a row's end
    is_output: Tensor  # [penalized, most]
    repetition: Tensor  # [penalized] 1: none
    presence: Tensor  # [penalized] 0: none
    frequency: Tensor  # [penalized] 0: none


def penalized(logits: Tensor, penalties: Penalties) -> Tensor:
    """A copy of `logits` [rows, vocabulary] in float32. Work grows with
    the tokens so far, not with the vocabulary.
    """
    logits = logits.float()
    some, tokens = logits[penalties.rows], penalties.tokens
    scores = some.gather(1, tokens)
    repetition = penalties.repetition[:, None]
    scores = torch.where(scores > 0, scores / repetition, scores * repetition)
    counts = torch.zeros_like(some).scatter_add_(1, tokens, penalties.is_output.float()).gather(1, tokens)
    scores = scores - penalties.frequency[:, None] * counts - penalties.presence[:, None] * (counts > 0)
    return logits.index_copy(0, penalties.rows, some.scatter_(1, tokens, scores))
