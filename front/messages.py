"""The messages of a chat as turns."""

from __future__ import annotations

from typing import Any

from client.wire import Message
from front import asks
from front.errors import refused
from front.model import Model
from python_backends.text.door.fitting import fitted
from python_backends.text.door.turns import SAME_ROLE, Call, Turn, arguments_of, joined


def plain_messages(messages: list[asks.Message], model: Model, has_tools: bool) -> list[Message]:
    """Returns what the ensemble is asked. Raises ProblemError."""
    if not messages:
        raise refused("messages", ": must have at least one message")
    turns = [_turn(f"messages[{i}]", message) for i, message in enumerate(messages)]
    return fitted(turns, model.template, has_tools)


def _turn(name: str, message: asks.Message) -> Turn:
    calls = [_call(f"{name}.tool_calls[{i}]", call) for i, call in enumerate(message.tool_calls or ())]
    return Turn(
        role=SAME_ROLE.get(message.role, message.role),
        content=_text(f"{name}.content", message.content) or message.refusal or "",
        calls=tuple(calls),
        call_id=message.tool_call_id or "",
        thought=message.reasoning_content or message.reasoning or "",
    )


def _call(name: str, call: Any) -> Call:
    """Of a function, or of a custom tool, whose input is one text."""
    for kind in ("function", "custom"):
        asked = call.get(kind) if isinstance(call, dict) else None
        if isinstance(asked, dict) and isinstance(asked.get("name"), str):
            given = arguments_of(asked.get("arguments")) if kind == "function" else asked.get("input", "")
            arguments = given if kind == "function" else {"input": given}
            return Call(str(call.get("id") or ""), asked["name"], arguments)
    raise refused(name, ": must have a function, with name and arguments", "invalid_type")


def _text(name: str, content: str | list[asks.Part] | None) -> str:
    """Returns the texts of all parts, in lines of their own; a null content is an empty one."""
    if content is None or isinstance(content, str):
        return content or ""
    for i, part in enumerate(content):
        if part.type not in ("text", "refusal") or part.said is None:
            raise refused(
                f"{name}[{i}].type", f" = {part.type[:40]!r}: must be text, with a text", "unsupported_value"
            )
    return joined([part.said or "" for part in content])
