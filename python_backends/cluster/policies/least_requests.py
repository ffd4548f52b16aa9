"""To the instance with the fewest requests, as most load balancers do."""

from __future__ import annotations

from collections.abc import Sequence

from python_backends.cluster.policies.policy import Candidate, Dispatch


def least_requests(candidates: Sequence[Candidate], dispatch: Dispatch) -> Candidate:
    return min(candidates, key=lambda each: each.view.num_requests)
