"""To the instance with the least memory in use, that of waiting requests included: INFaaS++, as Llumnix (OSDI
2024) compares with it. Where no slot is free, the fewest waiting requests decide.
Tested in tests/pure/test_router.py.
"""

from __future__ import annotations

import numpy as np

from python_backends.cluster.columns import least
from python_backends.cluster.policies.policy import Candidates


def infaas(candidates: Candidates) -> int:
    figures = candidates.figures
    return least(np.maximum(0, 1 - figures.num_free_slots), -figures.free_tokens)
