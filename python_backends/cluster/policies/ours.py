"""To the instance where the first token comes soonest: where a slot and the memory are free, and then where
the fewest prompt tokens have to be computed before it. Among equal ones the highest freeness decides.

A request of high priority goes before all that wait, and its prompt before the others: for it the memory
counts that no running request has or will need, and then the freeness.
"""

from __future__ import annotations

from python_backends.cluster.policies.policy import Candidates
from python_backends.nouns.instance_load import InstanceLoad


def ours(candidates: Candidates) -> InstanceLoad:
    """What the request waits for decides in the order of what takes longest."""
    is_high, num_tokens = candidates.priority > 0, candidates.num_tokens

    def wait(load: InstanceLoad) -> tuple[float, ...]:
        num_before = max(0, 1 - load.num_free_slots)  # requests that get a slot before it
        lacks = max(0, num_tokens - (load.unpromised_tokens if is_high else load.free_tokens))  # memory
        to_compute = 0 if is_high else load.tokens_to_compute + candidates.num_new_tokens(load)
        return num_before, lacks, to_compute, -load.freeness

    return min(candidates.loads, key=wait)
