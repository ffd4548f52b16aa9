"""[toy]: the engine of the tests. Tested in tests/pure/test_house.py."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class ToySettings:
    step_ms: float = setting(0.0, "time of a step", 0.0, 3_600_000.0)
    poison_token: int = setting(-1, "the process dies when it computes this token; -1: never", -1, 1 << 30)
    block_bytes: int = setting(
        0,
        "bytes of a KV block that is copied to another instance; 0: those of its tokens",
        0,
        1 << 30,
    )
