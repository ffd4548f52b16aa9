"""[cluster]: how many instances run, which one gets a request, and when a running request moves.

Raises SettingsError where the numbers of instances contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import SettingsError, setting


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    instances: int = setting(
        1, "instances, each with the whole model; the processors are divided among them", 1, 64
    )
    engine: str = setting(
        "local",
        "where instances run: local (on this host) | ray (on the hosts of a Ray cluster; docs/llumnix.md)",
        choices=("local", "ray"),
    )
    address: str = setting(
        "", "HOST:PORT of the Ray cluster, with cluster.engine = ray; empty: one is started on this host"
    )
    policy: str = setting(
        "ours",
        "which instance gets a request, and which requests move (docs/llumnix.md): ours | llumnix |"
        " llumnix_base | module:NAME, a policy of your own (docs/how-to/policy.md)",
        choices=("ours", "llumnix", "llumnix_base"),
        takes_modules=True,
    )
    move: str = setting(
        "blocks",
        "how a running request gets to another instance: blocks (with its KV blocks) | recompute (its tokens"
        " are computed again there) | off (never)",
        choices=("blocks", "recompute", "off"),
    )
    max_instances: int = setting(
        0,
        "the number of instances follows the load, from cluster.instances up to this number"
        " (docs/llumnix.md); 0: it stays at cluster.instances",
        0,
        64,
    )
    scale_up_tokens: int = setting(
        160,
        "one more instance if the average freeness is below this (tokens per request)",
        0,
        1 << 20,
    )
    scale_down_tokens: int = setting(
        960, "one instance less if the average freeness is above this (tokens per request)", 1, 1 << 20
    )

    def __post_init__(self) -> None:
        if self.follows_load and self.instances > self.max_instances:
            raise SettingsError(
                f"cluster.instances = {self.instances}: must be at most cluster.max_instances ="
                f" {self.max_instances}"
            )
        if self.scale_up_tokens >= self.scale_down_tokens:
            raise SettingsError(
                f"cluster.scale_up_tokens = {self.scale_up_tokens}: must be below cluster.scale_down_tokens ="
                f" {self.scale_down_tokens}"
            )

    @property
    def follows_load(self) -> bool:
        """Whether the number of instances follows the load."""
        return self.max_instances > 0

    @property
    def most_instances(self) -> int:
        """The largest number of instances at the same time."""
        return max(self.instances, self.max_instances)
