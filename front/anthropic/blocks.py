"""The blocks of a message as they grow, and their events: one after the other, never two open."""

from __future__ import annotations

import json
import secrets
from typing import Any

from front.errors import ProblemError
from front.parts.events import Arguments, Begun, Ended, Event, Text, Thought
from front.parts.reading import proper
from front.responses import event

SIGNATURE = "gapless"  # of thoughts: clients send it back, and nothing looks at it


class Blocks:
    """Of one message."""

    def __init__(self, omits_thoughts: bool) -> None:
        """`omits_thoughts`: blocks of thoughts are empty."""
        self._omits_thoughts = omits_thoughts
        self._blocks: list[dict[str, Any]] = []
        self._is_open = False
        self._arguments = ""  # of the call that is open
        self.has_calls = False  # complete ones

    @property
    def content(self) -> list[dict[str, Any]]:
        """The blocks that are complete: no call that the answer's end cut."""
        return self._blocks[: len(self._blocks) - self._is_open]

    def add(self, events: list[Event]) -> list[bytes]:
        """Raises ProblemError if a call has other arguments than an object."""
        return [made for each in events for made in self._add(each)]

    def _add(self, each: Event) -> list[bytes]:
        if isinstance(each, Thought):
            begun = self._begin("thinking", {"thinking": "", "signature": ""})
            if self._omits_thoughts:
                return begun
            self._blocks[-1]["thinking"] += each.text
            return [*begun, self._delta({"type": "thinking_delta", "thinking": each.text})]
        if isinstance(each, Text):
            begun = self._begin("text", {"text": "", "citations": None})
            self._blocks[-1]["text"] += each.text
            return [*begun, self._delta({"type": "text_delta", "text": each.text})]
        if isinstance(each, Begun):
            self._arguments = ""
            call = {"id": f"toolu_{secrets.token_hex(12)}", "name": each.name, "input": {}}
            return [*self.end(), *self._begin("tool_use", call)]
        if isinstance(each, Arguments):
            self._arguments += each.text
            return [self._delta({"type": "input_json_delta", "partial_json": each.text})]
        assert isinstance(each, Ended)
        self._blocks[-1]["input"] = self._object()
        self.has_calls = True
        return self.end()

    def _begin(self, kind: str, fields: dict[str, Any]) -> list[bytes]:
        """Nothing if a block of the kind is open."""
        if self._is_open and self._blocks[-1]["type"] == kind:
            return []
        ended = self.end()
        self._is_open = True
        self._blocks.append({"type": kind, **fields})
        block = dict(self._blocks[-1])
        return [*ended, named_event("content_block_start", index=len(self._blocks) - 1, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def end(self) -> list[bytes]:
        """Closes the block that is open."""
        if not self._is_open:
            return []
        self._is_open = False
        signed = []
        if self._blocks[-1]["type"] == "thinking":
            self._blocks[-1]["signature"] = SIGNATURE
            signed = [self._delta({"type": "signature_delta", "signature": SIGNATURE})]
        return [*signed, named_event("content_block_stop", index=len(self._blocks) - 1)]

    def finish(self) -> list[bytes]:
        """The answer is over. A call that it cut is closed, and is no part of the content."""
        is_cut = self._is_open and self._blocks[-1]["type"] == "tool_use"
        ended = self.end()
        if is_cut:
            self._blocks.pop()
        return ended

    def _object(self) -> dict[str, Any]:
        try:
            found = json.loads(self._arguments)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            object_: dict[str, Any] = json.loads(proper(json.dumps(found, ensure_ascii=False)))
            return object_
        name = self._blocks[-1]["name"]
        said = f"the model called {name!r} with arguments that are no JSON object; ask again"
        raise ProblemError(500, said, "failed", kind="server_error")


def named_event(name: str, **fields: Any) -> bytes:
    """Returns an event whose data repeat its name, as all of Anthropic's do."""
    return event({"type": name, **fields}, name)
