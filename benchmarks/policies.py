"""Policies that are only compared with: no server needs them, and a setting names them as `module:NAME`."""

from __future__ import annotations

import numpy as np

from python_backends.cluster.policies.policy import Candidates, ClusterPolicy
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.scheduling.lengths.belief import Array
from python_backends.scheduling.lengths.predicted_order import Waits
from python_backends.scheduling.policies.policy import Policy, fitting, longest_rest

GAMMA = 0.5  # towards 0: shortest first; large: first come first served

# --- which request gets a slot: `scheduling.policy`


def shortest_first(waits: Waits) -> Array:
    """Shortest predicted answer first (arXiv 2408.15792)."""
    return waits.service_s


SJF = Policy(fitting, shortest_first, longest_rest, looks_ahead=True, max_passed_over_steps=200)


def boosted(waits: Waits) -> Array:
    """In order of arrival, each as much earlier as its boost is large (arXiv 2606.18431): a short one may
    pass a long one that came little before it, none waits without end. GAMMA is per usual service.
    """
    usual_s = max(float(waits.service_s.mean()), 1e-6)
    share = GAMMA * waits.service_s / usual_s
    rank: Array = -waits.waited_s + usual_s / GAMMA * np.log(-np.expm1(-share))
    return rank


BOOST = Policy(fitting, boosted, longest_rest, looks_ahead=True)

# --- which instance gets a request: `cluster.policy`


def infaas(candidates: Candidates) -> InstanceLoad:
    """To the least memory in use, that of waiting requests included: INFaaS++, as Llumnix (OSDI 2024)
    compares with it. Where no slot is free, the fewest waiting requests decide.
    """
    return min(candidates.loads, key=lambda load: (max(0, 1 - load.num_free_slots), -load.free_tokens))


def least_requests(candidates: Candidates) -> InstanceLoad:
    """To the fewest requests, as most load balancers do."""
    return min(candidates.loads, key=lambda load: load.num_requests)


def round_robin(candidates: Candidates) -> InstanceLoad:
    """One after the other, whatever they carry."""
    return candidates.loads[candidates.num_dispatches % len(candidates.loads)]


INFAAS, LEAST_REQUESTS, ROUND_ROBIN = map(ClusterPolicy, (infaas, least_requests, round_robin))

# all that are compared, in the order of the tables
SCHEDULING = ("fcfs", "orca", "past_future", "sjf", "hrrn", "ours")
CLUSTER = ("round_robin", "least_requests", "infaas", "llumnix_base", "llumnix", "ours")
_BASELINES = ("sjf", "boost", "infaas", "least_requests", "round_robin")


def setting_of(policy: str) -> str:
    """The value of `scheduling.policy` or `cluster.policy` that means it."""
    return f"{__name__}:{policy.upper()}" if policy in _BASELINES else policy
