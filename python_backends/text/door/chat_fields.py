"""Reads the fields of a chat: its messages, and what the template is given besides them.

Called by `fields` and `prompt_fields`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from python_backends.nouns.request import RefusedError
from python_backends.text.door.chat import Extras
from python_backends.text.door.values import Fields, flag, shown, string, unicode

# templates write the role between special tokens: no other words are allowed
ROLES = ("system", "developer", "user", "assistant", "tool")
EXTRAS = ("tools", "chat_template_kwargs", "continue_final_message")
MAX_DEPTH = 32  # of JSON in calls and tools
MAX_TOOLS = 1024
MAX_NAMED = 16
NAME = re.compile(r"[a-z]\w{0,63}", re.ASCII)
WORD = re.compile(r"[\w. -]{0,64}", re.ASCII)  # of a text for the template: no part of a special token
# what the template is given in any case
TAKEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"})


def read_extras(fields: Fields, max_json_bytes: int, limit: str) -> Extras:
    """Raises RefusedError."""
    given = [name for name in EXTRAS if name in fields]
    if given and "messages" not in fields:
        raise RefusedError(f"{given[0]}: needs messages")
    tools = _json(fields, "tools", list, max_json_bytes, limit) if "tools" in given else []
    named = _json(fields, EXTRAS[1], dict, max_json_bytes, limit) if EXTRAS[1] in given else {}
    _check_tools(tools)
    _check_named(named)
    return Extras(tuple(tools), named, "continue_final_message" in given and flag(fields, EXTRAS[2]))


def read_message(name: str, message: Any) -> dict[str, Any]:
    """Raises RefusedError."""
    if not isinstance(message, dict) or not {"role", "content"} <= set(message) <= _parts(message):
        raise RefusedError(
            f"{name} = {shown(message)}: must be an object with role and content, and nothing else; an"
            " assistant's may have tool_calls and reasoning_content, a tool's tool_call_id and name"
        )
    if message["role"] not in ROLES:
        raise RefusedError(f"{name}.role = {shown(message['role'])}: must be one of {', '.join(ROLES)}")
    made: dict[str, Any] = {"role": message["role"]}
    for part, value in message.items():
        if part == "tool_calls":
            made[part] = [_call(f"{name}.{part}[{i}]", call) for i, call in enumerate(_calls(name, value))]
        elif part != "role":
            if not isinstance(value, str):
                raise RefusedError(f"{name}.{part} = {shown(value)}: must be a string")
            made[part] = unicode(f"{name}.{part}", value)
    return made


def _parts(message: Mapping[str, Any]) -> set[str]:
    more = {"assistant": {"tool_calls", "reasoning_content"}, "tool": {"tool_call_id", "name"}}
    role = message.get("role")
    return {"role", "content", *(more.get(role, ()) if isinstance(role, str) else ())}


def _calls(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RefusedError(f"{name}.tool_calls = {shown(value)}: must be a list")
    return value


def _call(name: str, call: Any) -> dict[str, Any]:
    """Returns the call of a function, whose arguments are an object where they are one's JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RefusedError(f"{name} = {shown(call)}: must have a function, with name and arguments")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _object_in(arguments)
    if not isinstance(arguments, dict | str):
        raise RefusedError(f"{name}.function.arguments = {shown(arguments)}: must be an object")
    call_id = call.get("id", "")
    if not isinstance(call_id, str):
        raise RefusedError(f"{name}.id = {shown(call_id)}: must be a string")
    made = {"name": function["name"], "arguments": arguments}
    _check_texts(name, [call_id, made])
    return {"id": call_id, "type": "function", "function": made}


def _object_in(text: str) -> Any:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def _check_tools(tools: list[Any]) -> None:
    if len(tools) > MAX_TOOLS:
        raise RefusedError(f"tools = {len(tools)} tools: must be at most {MAX_TOOLS}")
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RefusedError(f"tools[{i}] = {shown(tool)}: must have a function, with a name")
        _check_texts(f"tools[{i}]", tool)


def _check_texts(name: str, value: Any, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise RefusedError(f"{name}: its JSON must be at most {MAX_DEPTH} deep")
    if isinstance(value, str):
        unicode(name, value)
    elif isinstance(value, dict | list):
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_texts(name, each, depth + 1)


def _check_named(named: Mapping[str, Any]) -> None:
    if len(named) > MAX_NAMED:
        raise RefusedError(f"chat_template_kwargs = {len(named)} values: must be at most {MAX_NAMED}")
    for name, value in named.items():
        if name in TAKEN or not NAME.fullmatch(name):
            raise RefusedError(f"chat_template_kwargs: {shown(name)} can't be given to the template")
        if isinstance(value, str) and not WORD.fullmatch(value):
            raise RefusedError(
                f"chat_template_kwargs.{name} = {shown(value)}: must have at most 64 letters, digits, spaces"
                " and . _ -"
            )
        if isinstance(value, dict | list):
            raise RefusedError(
                f"chat_template_kwargs.{name}: must be a string, a number, true, false or null"
            )


def _json(fields: Fields, name: str, kind: type, most: int, limit: str) -> Any:
    text = string(fields, name, most, limit)
    try:
        found = json.loads(text or ("[]" if kind is list else "{}"))
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{name} = {shown(text)}: must be JSON ({error})") from error
    if not isinstance(found, kind):
        said = "a list" if kind is list else "an object"
        raise RefusedError(f"{name} = {shown(text)}: must be {said} in JSON")
    return found
