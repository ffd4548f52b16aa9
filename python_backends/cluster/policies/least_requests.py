"""To the instance with the fewest requests, as most load balancers do.

Tested in tests/pure/test_router.py.
"""

from __future__ import annotations

from python_backends.cluster.columns import least
from python_backends.cluster.policies.policy import Candidates


def least_requests(candidates: Candidates) -> int:
    return least(candidates.figures.num_requests)
