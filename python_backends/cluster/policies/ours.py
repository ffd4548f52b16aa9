"""To the instance where the first token comes soonest: where a slot and the memory are free, and then where
the fewest prompt tokens have to be computed before it. Among equal ones the highest freeness decides.

A request of high priority goes before all that wait, and its prompt before the others: for it the memory
counts that no running request has or will need, and then the freeness.
"""

from __future__ import annotations

import numpy as np

from python_backends.cluster.columns import least
from python_backends.cluster.policies.policy import Candidates


def ours(candidates: Candidates) -> int:
    """What the request waits for decides in the order of what takes longest."""
    figures, is_high = candidates.figures, candidates.priority > 0
    num_before = np.maximum(0, 1 - figures.num_free_slots)  # requests that get a slot before it
    free_tokens = figures.unpromised_tokens if is_high else figures.free_tokens
    lacks = np.maximum(0, candidates.num_tokens - free_tokens)  # tokens for which there is no memory
    if is_high:
        return least(num_before, lacks, -figures.freeness_base)
    to_compute = figures.tokens_to_compute + candidates.num_new_tokens
    return least(num_before, lacks, to_compute, -figures.freeness_base)
