"""Which rows of a step give log-probabilities of prompts' tokens.

Owns nothing. Called by the plan writer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from python_backends.nouns.request import Ids
from python_backends.nouns.step import ScoredRows
from python_backends.scheduling.state.slots import SlotTable

Chunk = tuple[int, int, int]  # slot, start, length


def scored_rows(slots: SlotTable, num_decodes: int, chunks: Sequence[Chunk]) -> ScoredRows | None:
    """Of a step in which `chunks` follow `num_decodes` rows. What follows a prompt's last token is not
    known.
    """
    rows: list[Ids] = []
    next_tokens: list[Ids] = []
    num_top, first = 0, num_decodes
    for slot, start, length in chunks:
        sequence = slots.sequence(slot)
        count = min(length, sequence.num_prompt_tokens - 1 - start)
        if sequence.scores_prompt and count > 0:
            rows.append(np.arange(first, first + count, dtype=np.int32))
            next_tokens.append(slots.tokens[slot, start + 1 : start + 1 + count])
            num_top = max(num_top, sequence.request.sampling.num_top_log_probs)
        first += length
    return ScoredRows(np.concatenate(rows), np.concatenate(next_tokens), num_top) if rows else None
