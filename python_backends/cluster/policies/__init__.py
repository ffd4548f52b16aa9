"""The policies by the names of `cluster.policy`, each in a file of its own."""

from python_backends.cluster.policies.infaas import infaas
from python_backends.cluster.policies.least_requests import least_requests
from python_backends.cluster.policies.llumnix import llumnix, llumnix_base
from python_backends.cluster.policies.ours import ours
from python_backends.cluster.policies.policy import ClusterPolicy
from python_backends.cluster.policies.round_robin import round_robin

POLICIES: dict[str, ClusterPolicy] = {
    "ours": ours,
    "llumnix": llumnix,
    "llumnix_base": llumnix_base,
    "infaas": infaas,
    "least_requests": least_requests,
    "round_robin": round_robin,
}
