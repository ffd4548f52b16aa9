"""[cluster]: how many instances there are, which of them gets a request, and when a running one moves."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting

CLUSTER_POLICIES = (
    "ours",
    "llumnix",
    "llumnix_base",
    "infaas",
    "least_requests",
    "round_robin",
    "shuffle",
)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    instances: int = setting(
        1, "instances, each with the whole model; the processors are divided among them", 1, 64
    )
    policy: str = setting(
        "ours",
        "which instance gets a request, and which requests move (docs/llumnix.md): ours | llumnix |"
        " llumnix_base | infaas | least_requests | round_robin | shuffle; shuffle moves at random, for tests",
        choices=CLUSTER_POLICIES,
    )
    move: str = setting(
        "blocks",
        "how a running request gets to another instance: blocks (with its KV blocks) | recompute (its tokens"
        " are computed again there) | off (never)",
        choices=("blocks", "recompute", "off"),
    )
    balance_every_s: float = setting(0.5, "how often moves are considered", 0.01, 3600.0)
    max_moves: int = setting(1, "requests that leave one instance at the same time", 1, 64)
    max_rounds: int = setting(
        3,
        "a move is given up when its request still has more than a block to copy after so many rounds",
        1,
        64,
    )
    copy_share: float = setting(
        0.05, "of an instance's time, at most so much is spent on copying KV blocks", 0.001, 1.0
    )
    low_tokens: int = setting(
        48, "requests leave an instance whose freeness is below this (tokens per request)", 0, 1 << 20
    )
    priority_headroom_tokens: int = setting(
        1600, "KV tokens that are kept free where requests of high priority run", 0, 1 << 30
    )
