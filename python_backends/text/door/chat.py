"""A chat as a template is given it: messages and what belongs to them. All texts in it are a user's, at any
depth: values and names in the calls of tools, and in what says which tools there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# role and content; an assistant's also reasoning_content and tool_calls, a tool's also tool_call_id and name
Message = Mapping[str, Any]
Tool = Mapping[str, Any]  # as OpenAI writes a function: type, and function with name, description, parameters

# the words of calls and JSON schemas: templates compare with them, so they stay as they are
WORDS = frozenset(
    {
        *("id", "type", "function", "name", "description", "parameters", "arguments", "strict", "return"),
        *("properties", "required", "items", "enum", "default", "title", "format", "const", "anyOf"),
        *("additionalProperties", "minimum", "maximum", "$ref", "$defs", "$schema"),
        *("object", "string", "array", "number", "integer", "boolean", "null"),
    }
)


@dataclass(frozen=True, slots=True)
class Extras:
    """What a chat has besides its messages."""

    tools: Sequence[Tool] = ()
    named: Mapping[str, Any] = field(default_factory=dict)  # for the template, by the names that it knows
    continues: bool = False  # the answer goes on with the last message


NONE = Extras()


def texts_of(value: Any) -> Iterator[str]:
    """Yields all texts, and the names in objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from texts_of(name)
            yield from texts_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_of(each)


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """Returns `value` with other texts in it, except WORDS."""
    if isinstance(value, str):
        return value if value in WORDS else change(value)
    if isinstance(value, Mapping):
        return {changed(name, change): changed(each, change) for name, each in value.items()}
    return [changed(each, change) for each in value] if isinstance(value, list | tuple) else value


def changed_message(message: Message, change: Callable[[str], str]) -> dict[str, Any]:
    """The same of a message. Its role, and the names of its parts, are no user's."""
    made: dict[str, Any] = {}
    for name, value in message.items():
        if name == "role":
            made[name] = value
        else:
            made[name] = change(value) if name == "content" else changed(value, change)
    return made


def texts_of_message(message: Message) -> Iterator[str]:
    return (text for name, value in message.items() if name != "role" for text in texts_of(value))
