"""The fields of a message's request that are taken. All others are ignored: clients send new ones with every
version.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from front.asks import Ask

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
