"""The steps that need the most memory besides weights and KV blocks, made without a slot scheduler: what they
take is known at the start.

Owns nothing. The torch engine runs them on a GPU before it takes requests: once to learn how many KV blocks
it may have, and once with all of these, so that a device that is too small is found at the start and not
under load.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids, ModelLimits, Sampling
from python_backends.nouns.step import MOST_SCORED, Admit, Release, ScoredRows, StepPlan

# all that a request can ask of the sampler
DRAWN = Sampling(
    2,
    temperature=1.0,
    top_k=8,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    bad_words=((0, 1),),
    log_probs=True,
    num_top_log_probs=1,
    logit_bias=((0, 1.0),),
)


def largest_steps(limits: ModelLimits, token_budget: int, context: int) -> list[StepPlan]:
    """A step of `token_budget` prompt tokens, a step in which all slots decode after `context` tokens, and
    one that frees the slots.

    Every row that samples draws with all that can be asked for; as many rows as may be are scored. All slots
    share block 0, because the results are not used.
    """
    context = max(1, min(context, limits.max_model_tokens - 1))
    lengths = prompt_lengths(limits, token_budget)
    slots = np.arange(limits.num_slots, dtype=np.int32)
    deep, ones = np.full_like(slots, context), np.ones_like(slots)
    return [
        replace(
            _plan(0, _admits(limits, lengths), slots[: len(lengths)], np.zeros_like(lengths), lengths, 0),
            scored=_scored(int(lengths.sum())),
        ),
        _plan(1, _admits(limits, deep), slots, deep - 1, ones, len(slots)),
        _plan(2, tuple(Release(slot, 0) for slot in slots.tolist()), slots[:0], slots[:0], slots[:0], 0),
    ]


def prompt_lengths(limits: ModelLimits, token_budget: int) -> Ids:
    """[slots that get any] `token_budget` tokens, or as many as fit,
    divided among as many slots as possible.
    """
    longest = max(1, limits.max_model_tokens - 1)
    total = min(token_budget, limits.num_slots * longest)
    each, more = divmod(total, limits.num_slots)
    lengths = np.full(limits.num_slots, each, np.int32)
    lengths[:more] += 1
    return lengths[lengths > 0]


def _admits(limits: ModelLimits, lengths: Ids) -> tuple[Admit, ...]:
    blocks: NDArray[np.int32] = np.zeros(-(-limits.max_model_tokens // limits.block_tokens), np.int32)
    counts = (lengths // limits.block_tokens + 1).tolist()
    return tuple(
        Admit(slot, 0, DRAWN, length, 0, blocks[:count])
        for slot, (length, count) in enumerate(zip(lengths.tolist(), counts, strict=True))
    )


def _scored(num_tokens: int) -> ScoredRows:
    rows = np.arange(min(num_tokens, MOST_SCORED), dtype=np.int32)
    return ScoredRows(rows, np.zeros_like(rows), DRAWN.num_top_log_probs)


def _plan(
    number: int,
    operations: tuple[Admit, ...] | tuple[Release, ...],
    slots: Ids,
    firsts: Ids,
    lengths: Ids,
    num_decodes: int,
) -> StepPlan:
    tokens = np.zeros(int(lengths[num_decodes:].sum()), np.int32)
    return StepPlan(
        number,
        operations,
        slots,
        np.zeros_like(slots),
        firsts,
        lengths,
        num_decodes,
        np.ones(len(slots), np.bool_),
        tokens,
    )
