"""[scheduling]: which request gets a slot, and how long a step may take."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import imported, setting

PREDICTED_POLICIES = ("ours", "hrrn")  # those that use predicted lengths


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    policy: str = setting(
        "ours",
        "which request gets the next free slot (docs/scheduling.md): ours | hrrn | past_future | fcfs |"
        " orca | module:NAME, a policy of your own (docs/how-to/policy.md); orca uses only the order of"
        " arrival and ignores request_priority",
        choices=("ours", "hrrn", "past_future", "fcfs", "orca"),
        takes_modules=True,
    )
    max_step_ms: float = setting(
        150.0,
        "longest time of a step that computes prompts while other requests decode; at least twice the time"
        " of a step without prompts",
        0.0,
        600_000.0,
    )
    ttft_s: float = setting(
        1.0, "when the first token is due: requests that can still meet it go first (ours)", 0.0, 3600.0
    )
    late_token_ms: float = setting(
        100.0,
        "a token that comes later than this after the one before it is late (docs/token_way.md); a step and"
        " the training before it take no longer, as expected",
        1.0,
        10_000.0,
    )

    @property
    def uses_lengths(self) -> bool:
        """Whether the policy orders requests by predicted lengths. Raises SettingsError."""
        if ":" in self.policy:
            rank = getattr(imported("scheduling.policy", self.policy, object), "rank", None)
            return rank is not None
        return self.policy in PREDICTED_POLICIES
