"""To the instance with the highest freeness: Llumnix (OSDI 2024), with and without its priorities."""

from __future__ import annotations

from collections.abc import Sequence

from python_backends.cluster.policies.policy import Candidate, Dispatch


def llumnix(candidates: Sequence[Candidate], dispatch: Dispatch) -> Candidate:
    return max(candidates, key=lambda each: each.freeness)


def llumnix_base(candidates: Sequence[Candidate], dispatch: Dispatch) -> Candidate:
    return max(candidates, key=lambda each: each.freeness_base)
