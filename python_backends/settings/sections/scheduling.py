"""[scheduling]: which request gets a slot, and how long a step may take.

Tested in tests/pure/test_house.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting

PREDICTED_POLICIES = ("ours", "hrrn", "sjf")  # those that use predicted lengths


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    policy: str = setting(
        "ours",
        "which request gets the next free slot (docs/scheduling.md): ours | hrrn | sjf | past_future | fcfs |"
        " orca; orca uses only the order of arrival and ignores request_priority",
        choices=("ours", "hrrn", "sjf", "past_future", "fcfs", "orca"),
    )
    max_step_ms: float = setting(
        150.0,
        "longest time of a step that computes prompts while other requests decode; at least twice the time"
        " of a step without prompts",
        0.0,
        600_000.0,
    )
    max_passed_over_s: float = setting(
        10.0,
        "a request that was overtaken goes first after this time, whatever its request_priority",
        0.0,
        86_400.0,
    )
    patience: float = setting(
        0.1,
        "ours, where slots are scarce: an overtaken request goes first among equal priorities once it has"
        " waited this fraction of the longest present wait. Larger: more requests in time under overload, and"
        " a longer worst wait",
        0.0,
        1000.0,
    )
    memory_share: float = setting(
        0.95,
        "the KV blocks that are predicted to be in use in the coming steps stay below this share; not for"
        " fcfs and orca",
        0.1,
        1.0,
    )
    memory_caution: float = setting(
        1.0,
        "standard deviations of that prediction that are kept free. Larger: fewer evictions and fewer"
        " requests at the same time",
        0.0,
        10.0,
    )
    ttft_s: float = setting(
        1.0, "when the first token is due: requests that can still meet it go first (ours)", 0.0, 3600.0
    )
