"""To the instance where the first token comes soonest: where a slot and the memory are free, and then where
the fewest prompt tokens have to be computed before it. Among equal ones the highest freeness decides.
"""

from __future__ import annotations

import numpy as np

from python_backends.cluster.columns import least
from python_backends.cluster.policies.policy import Candidates


def ours(candidates: Candidates) -> int:
    """What the request waits for decides in the order of what takes longest."""
    figures, num_tokens = candidates.figures, candidates.num_tokens
    num_before = np.maximum(0, 1 - figures.num_free_slots)  # requests that get a slot before it
    lacks = np.maximum(0, num_tokens - figures.free_tokens)  # tokens for which there is no memory
    return least(num_before, lacks, figures.tokens_to_compute + candidates.num_new_tokens, -figures.freeness)
