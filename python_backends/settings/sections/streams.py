"""[streams]: how many requests are open, and when tokens are sent to clients.

Tested in tests/pure/test_house.py.
"""

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
    coalescing_ms: float = setting(
        60.0, "tokens are held for at most this time while the sender is busy; 0: never", 0.0, 60.0
    )
    sender_load: float = setting(
        0.0075,
        "tokens are held, to be sent together, if sending takes this share of the machine's processors",
        0.0001,
        1.0,
    )
    probe_ms: float = setting(
        250.0, "how often it is checked whether a waiting stream's client is still there", 10.0, 10_000.0
    )
    max_unacknowledged: int = setting(32, "responses of one stream on their way to the detokenizer", 1, 4096)
    max_in_flight: int = setting(
        128,
        "responses of all streams on their way to the detokenizer; beyond it tokens are held",
        1,
        65536,
    )
    dead_after_s: float = setting(
        10.0, "a process without a heartbeat for this time is killed and started again", 1.0, 3600.0
    )
