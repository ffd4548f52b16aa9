"""[streams]: how many requests are open, and when tokens are sent to clients."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class StreamSettings:
    max_open: int = setting(
        1024, "requests that are accepted and not ended; one more is refused with UNAVAILABLE", 1, 1 << 20
    )
    max_queued_tokens: int = setting(
        1_000_000,
        "prompt tokens of all requests that wait for a slot; a request that would exceed it is refused with"
        " UNAVAILABLE",
        1,
        1 << 40,
    )
    dead_after_s: float = setting(
        10.0, "a process without a heartbeat for this time is killed and started again", 1.0, 3600.0
    )
