"""One after the other, whatever they carry. Tested in tests/pure/test_router.py."""

from __future__ import annotations

from python_backends.cluster.policies.policy import Candidates


def round_robin(candidates: Candidates) -> int:
    return candidates.num_dispatches % len(candidates.num_new_tokens)
