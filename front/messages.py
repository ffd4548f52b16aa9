"""The messages of a chat, as the ensemble takes them: each a role and a text."""

from __future__ import annotations

from client.wire import Message
from front import asks
from front.errors import refused

# templates know the first name; the second is its newer one
SAME_ROLE = {"developer": "system", "function": "tool"}


def plain_messages(messages: list[asks.Message]) -> list[Message]:
    """Raises ProblemError."""
    if not messages:
        raise refused("messages", ": must have at least one message")
    return [_plain(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _plain(name: str, message: asks.Message) -> Message:
    if message.tool_calls:
        raise refused(f"{name}.tool_calls", ": this server has no tool calls", "unsupported_value")
    role = SAME_ROLE.get(message.role, message.role)
    return {"role": role, "content": _text(f"{name}.content", message.content)}


def _text(name: str, content: str | list[asks.Part] | None) -> str:
    """Returns the texts of all parts, in lines of their own; a null content is an empty one."""
    if content is None or isinstance(content, str):
        return content or ""
    for i, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise refused(
                f"{name}[{i}].type", f" = {part.type[:40]!r}: must be text, with a text", "unsupported_value"
            )
    return "\n".join(part.text or "" for part in content)
