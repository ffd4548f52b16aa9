"""Policies: which request gets a slot, and which is evicted. One file each; `scheduling.policy` chooses one
by its name in `POLICIES`, or one of others as `module:NAME`.

The `oracle` of the benchmarks is `ours` with the true lengths as predictions.
"""

from python_backends.scheduling.policies.fcfs import FCFS
from python_backends.scheduling.policies.hrrn import HRRN
from python_backends.scheduling.policies.orca import ORCA
from python_backends.scheduling.policies.ours import OURS
from python_backends.scheduling.policies.past_future import PAST_FUTURE
from python_backends.scheduling.policies.policy import Policy
from python_backends.settings import SchedulingSettings
from python_backends.settings.setting import named

POLICIES: dict[str, Policy] = {
    "fcfs": FCFS,
    "orca": ORCA,
    "past_future": PAST_FUTURE,
    "hrrn": HRRN,
    "ours": OURS,
}


def policy_of(settings: SchedulingSettings) -> Policy:
    """Raises SettingsError if it is one of others, and can't be imported."""
    return named("scheduling.policy", settings.policy, POLICIES, Policy)
