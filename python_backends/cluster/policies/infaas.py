"""To the instance with the least memory in use, that of waiting requests included: INFaaS++, as Llumnix (OSDI
2024) compares with it. Where no slot is free, the fewest waiting requests decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from python_backends.cluster.policies.policy import Candidate, Dispatch


def infaas(candidates: Sequence[Candidate], dispatch: Dispatch) -> Candidate:
    return min(candidates, key=_load)


def _load(candidate: Candidate) -> tuple[int, int]:
    view = candidate.view
    return max(0, 1 - view.num_free_slots), view.used_tokens + view.waiting_tokens
