"""To the instance with the highest freeness: Llumnix (OSDI 2024), with and without its priorities."""

from __future__ import annotations

from python_backends.cluster.columns import least
from python_backends.cluster.policies.policy import Candidates


def llumnix(candidates: Candidates) -> int:
    return least(-candidates.figures.freeness)


def llumnix_base(candidates: Candidates) -> int:
    return least(-candidates.figures.freeness_base)
