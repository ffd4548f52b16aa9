"""The parts of a chat's answer, as OpenAI's chats have them."""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Iterator
from typing import Any

from front.parts.events import Arguments, Begun, Ended, Event, Text, Thought
from front.parts.input import Input

LETTERS = string.ascii_letters + string.digits
NUM_LETTERS = 9  # as Mistral's templates want them


def new_id() -> str:
    """Of a call."""
    return "".join(secrets.choice(LETTERS) for _ in range(NUM_LETTERS))


class ChatParts:
    """Collects one answer."""

    def __init__(self, custom: Collection[str] = ()) -> None:
        """`custom`: names of tools that take a text."""
        self._custom = custom
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._num_ended = 0

    @property
    def has_calls(self) -> bool:
        """Whether there are complete ones."""
        return self._num_ended > 0

    def deltas(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        for event in events:
            if made := self._delta(event):
                yield made

    def _delta(self, event: Event) -> dict[str, Any] | None:
        if isinstance(event, Text):
            self._texts.append(event.text)
            return {"content": event.text}
        if isinstance(event, Thought):
            self._thoughts.append(event.text)
            return {"reasoning_content": event.text, "reasoning": event.text}
        if isinstance(event, Ended):
            self._num_ended += 1
            return None
        return {"tool_calls": [self._call(event)]}

    def _call(self, event: Begun | Arguments) -> dict[str, Any]:
        if isinstance(event, Arguments):
            self._calls[-1]["function"]["arguments"] += event.text
            return {"index": len(self._calls) - 1, "function": {"arguments": event.text}}
        head = {"id": new_id(), "type": "function"}
        function = {"name": event.name, "arguments": ""}
        self._calls.append({**head, "function": function})
        return {"index": len(self._calls) - 1, **head, "function": dict(function)}

    def message(self) -> dict[str, Any]:
        """The whole answer."""
        text, thought = "".join(self._texts), "".join(self._thoughts)
        made: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if thought:
            made |= {"reasoning_content": thought, "reasoning": thought}
        if self._calls:
            made["content"] = text or None
            made["tool_calls"] = [self._whole(call) for call in self._calls]
        return made

    def _whole(self, call: dict[str, Any]) -> dict[str, Any]:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if name not in self._custom:
            return call
        given = Input()
        given.add(arguments)
        given.end()
        return {"id": call["id"], "type": "custom", "custom": {"name": name, "input": given.text}}
