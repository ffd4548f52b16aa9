"""The turns of a conversation, whichever interface they came by, or of a line of training data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from python_backends.text.door.template_probe import CALL

# what templates call a role that clients may give another name
SAME_ROLE = {"developer": "system", "function": "tool"}


@dataclass(frozen=True, slots=True)
class Call:
    """The model called a tool."""

    id: str
    name: str
    arguments: Any  # an object; a text if what came is no JSON object

    @property
    def text(self) -> str:
        """For templates that don't write calls: as most models are trained to write them."""
        call = json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)
        return f"<tool_call>\n{call}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. `role`: system, user, assistant or tool."""

    role: str
    content: str = ""
    calls: tuple[Call, ...] = ()  # of an assistant
    call_id: str = ""  # of a tool's answer
    thought: str = ""  # of an assistant, before its content

    @property
    def kind(self) -> str:
        """As the probe of a chat template names it."""
        return CALL if self.calls else self.role


def arguments_of(given: Any) -> Any:
    """Returns the object in the text `given`, or `given` if there is none; without any, an empty object."""
    if not isinstance(given, str):
        return given or {}
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        return given or {}
    return found if isinstance(found, dict) else given


def joined(texts: Sequence[str]) -> str:
    """Of one message's parts: in lines of their own."""
    return "\n".join(texts)
