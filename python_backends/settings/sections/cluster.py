"""[cluster]: how many instances there are, and which of them gets a request."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting

CLUSTER_POLICIES = ("ours", "llumnix", "llumnix_base", "infaas", "least_requests", "round_robin")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    instances: int = setting(
        1, "instances, each with the whole model; the processors are divided among them", 1, 64
    )
    policy: str = setting(
        "ours",
        "which instance gets a request (docs/llumnix.md): ours | llumnix | llumnix_base | infaas |"
        " least_requests | round_robin",
        choices=CLUSTER_POLICIES,
    )
    priority_headroom_tokens: int = setting(
        1600,
        "KV tokens that ordinary requests may use where requests of high priority run (llumnix, ours)",
        0,
        1 << 30,
    )
