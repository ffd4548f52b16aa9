"""To the instance with the highest freeness: Llumnix (OSDI 2024), with and without its priorities."""

from __future__ import annotations

from python_backends.cluster.policies.policy import Candidates
from python_backends.nouns.instance_load import InstanceLoad


def llumnix(candidates: Candidates) -> InstanceLoad:
    return max(candidates.loads, key=lambda load: load.freeness_with_headroom)


def llumnix_base(candidates: Candidates) -> InstanceLoad:
    return max(candidates.loads, key=lambda load: load.freeness)
