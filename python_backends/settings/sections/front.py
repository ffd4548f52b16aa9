"""[front]: the interface of OpenAI, in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class FrontSettings:
    port: int = setting(
        9000, "of the interface of OpenAI, /v1 (docs/openai.md), on server.address; 0: none", 0, 65535
    )
    api_keys: str = setting(
        "",
        "file with the keys that clients of /v1 may have, one in each line, relative to this folder;"
        " GAPLESS_API_KEY is one more; without any, the front listens on this host alone",
    )
