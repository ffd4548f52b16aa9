"""One after the other, whatever they carry."""

from __future__ import annotations

from collections.abc import Sequence

from python_backends.cluster.policies.policy import Candidate, Dispatch


def round_robin(candidates: Sequence[Candidate], dispatch: Dispatch) -> Candidate:
    return candidates[dispatch.number % len(candidates)]
