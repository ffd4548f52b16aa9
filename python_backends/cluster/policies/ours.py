"""To the instance where the first token comes soonest: where a slot and the memory are free, and then where
the fewest prompt tokens have to be computed before it. Among equal ones the highest freeness decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from python_backends.cluster.policies.policy import Candidate, Dispatch


def ours(candidates: Sequence[Candidate], dispatch: Dispatch) -> Candidate:
    return min(candidates, key=lambda each: _wait(each, dispatch))


def _wait(candidate: Candidate, dispatch: Dispatch) -> tuple[int, int, int, float]:
    """What the request waits for there, in the order of what takes longest."""
    view = candidate.view
    num_before = max(0, 1 - view.num_free_slots)  # requests that get a slot before it
    wanted = view.used_tokens + view.waiting_tokens + dispatch.num_tokens
    lacks = max(0, wanted - view.limits.kv_tokens)  # tokens for which there is no memory
    return num_before, lacks, view.tokens_to_compute + candidate.num_new_tokens, -candidate.freeness
