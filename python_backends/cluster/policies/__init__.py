"""The policies by the names of `cluster.policy`, each in a file of its own."""

from python_backends.cluster.policies.infaas import infaas
from python_backends.cluster.policies.least_requests import least_requests
from python_backends.cluster.policies.llumnix import llumnix, llumnix_base
from python_backends.cluster.policies.ours import ours
from python_backends.cluster.policies.pairs import (
    pairs_before_evictions,
    pairs_by_freeness,
    pairs_by_freeness_base,
)
from python_backends.cluster.policies.policy import ClusterPolicy
from python_backends.cluster.policies.round_robin import round_robin
from python_backends.cluster.policies.shuffle import shuffle, shuffled_pairs

POLICIES: dict[str, ClusterPolicy] = {
    "ours": ClusterPolicy(ours, pairs_before_evictions, gathers=True, spares_ending=True),
    "llumnix": ClusterPolicy(llumnix, pairs_by_freeness, keeps_headroom=True),
    "llumnix_base": ClusterPolicy(llumnix_base, pairs_by_freeness_base),
    "infaas": ClusterPolicy(infaas),
    "least_requests": ClusterPolicy(least_requests),
    "round_robin": ClusterPolicy(round_robin),
    "shuffle": ClusterPolicy(shuffle, shuffled_pairs),
}
