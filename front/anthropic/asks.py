"""The fields of a message's request that are taken. All others are ignored: clients send new ones with every
version.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from front.asks import Ask
from front.errors import refused

Content = str | list[dict[str, Any]]  # a text, or blocks


class Message(Struct):
    role: str
    content: Content | None = None


class CountAsk(Struct, kw_only=True):
    """What a prompt is made of. None: absent, or null."""

    messages: list[Message]
    model: str | None = None
    system: Content | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessagesAsk(CountAsk, kw_only=True):
    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    @property
    def plain(self) -> Ask:
        return Ask(
            model=self.model,
            stream=self.stream,
            stop=self.stop_sequences or None,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
        )


def check(ask: CountAsk) -> None:
    """Refuses what would change the answer and is not there. Raises ProblemError."""
    forced = (ask.tool_choice or {}).get("type")
    if forced in ("any", "tool"):
        said = f" = {forced!r}: an answer can't be made to call a tool here; leave it out, or send auto"
        raise refused("tool_choice.type", said, "unsupported_value")
    if (ask.output_config or {}).get("format"):
        raise refused(
            "output_config.format", ": answers don't follow a schema here; leave it out", "unsupported_value"
        )
