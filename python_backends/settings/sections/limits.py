"""[limits]: limits of a request. The door refuses a request beyond them and names the limit."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class LimitSettings:
    default_max_tokens: int = setting(256, "max_tokens of a request that has none", 1, 1 << 20)
    max_prompt_tokens: int = setting(
        0, "most tokens of a prompt; 0: as many as the model's context allows", 0, 1 << 24
    )
