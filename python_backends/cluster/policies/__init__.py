"""The policies by the names of `cluster.policy`, each in a file of its own."""

from python_backends.cluster.policies.llumnix import llumnix, llumnix_base
from python_backends.cluster.policies.ours import ours
from python_backends.cluster.policies.pairs import (
    pairs_before_evictions,
    pairs_by_freeness,
    pairs_by_freeness_base,
)
from python_backends.cluster.policies.policy import ClusterPolicy
from python_backends.settings import ClusterSettings
from python_backends.settings.setting import named

POLICIES: dict[str, ClusterPolicy] = {
    "ours": ClusterPolicy(ours, pairs_before_evictions, gathers=True, sees_prefixes=True, spares_ending=True),
    "llumnix": ClusterPolicy(llumnix, pairs_by_freeness, keeps_headroom=True),
    "llumnix_base": ClusterPolicy(llumnix_base, pairs_by_freeness_base),
}


def policy_of(settings: ClusterSettings) -> ClusterPolicy:
    """Raises SettingsError if it is one of others, and can't be imported."""
    return named("cluster.policy", settings.policy, POLICIES, ClusterPolicy)
