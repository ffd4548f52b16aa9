"""The tools of a request, and what else the chat template is given besides the messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from front.errors import refused
from front.log_once import log_once
from front.model import Model

Tool = dict[str, Any]  # as templates take them: type, and function
SKIPPED = "skipped: tools of the type %r"
EFFORT = re.compile(r"[\w-]{1,32}", re.ASCII)
# of a custom tool, which takes any text
INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def function(given: Any) -> Iterator[Tool]:
    """Yields the function that `given` describes by name, description and parameters; nothing if it has no
    name.
    """
    if isinstance(given, Mapping) and isinstance(given.get("name"), str):
        names = ("name", "description", "parameters")
        yield {"type": "function", "function": {name: given[name] for name in names if given.get(name)}}


def of_openai(tools: Iterable[Any], is_inside: bool = False) -> Iterator[Tool]:
    """Yields the functions among a chat's or a response's tools: in the former each has an object of the name
    of its type, in the latter none. Custom tools are functions with one text, and a namespace has tools in
    it. Others are skipped.
    """
    for tool in tools:
        if not isinstance(tool, Mapping):
            continue
        kind = str(tool.get("type"))[:40]
        given = tool.get(kind, tool)
        if kind == "function":
            yield from function(given)
        elif kind == "custom" and isinstance(given, Mapping):
            yield from function({**given, "parameters": INPUT})
        elif kind == "namespace" and not is_inside and isinstance(tool.get("tools"), list):
            yield from of_openai(tool["tools"], is_inside=True)
        else:
            log_once(SKIPPED, kind)


def of_anthropic(tools: Iterable[Any]) -> Iterator[Tool]:
    """Yields the functions among a message's tools; those of Anthropic's servers are skipped."""
    for tool in tools:
        if isinstance(tool, Mapping) and isinstance(tool.get("input_schema"), Mapping):
            yield from function({**tool, "parameters": {"type": "object", **tool["input_schema"]}})
        elif isinstance(tool, Mapping):
            log_once(SKIPPED, str(tool.get("type"))[:40])


def _each(tools: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the tools, and those inside a namespace."""
    for tool in tools:
        if isinstance(tool, Mapping):
            yield tool
            if tool.get("type") == "namespace" and isinstance(tool.get("tools"), list):
                yield from (each for each in tool["tools"] if isinstance(each, Mapping))


def custom_of(tools: Iterable[Any]) -> frozenset[str]:
    """Returns the names of the custom tools among a chat's or a response's."""
    custom = [tool for tool in _each(tools) if tool.get("type") == "custom"]
    return frozenset(tool["function"]["name"] for tool in of_openai(custom))


def strict_of(tools: Iterable[Any]) -> frozenset[str]:
    """Returns the names of the tools that say `strict: true`, in any interface."""
    inner = [tool.get(str(tool.get("type")), tool) for tool in _each(tools)]
    named = [each for each in inner if isinstance(each, Mapping) and isinstance(each.get("name"), str)]
    return frozenset(each["name"] for each in named if each.get("strict") is True)


def namespaces_of(tools: Iterable[Any]) -> dict[str, str]:
    """Returns the namespaces of the tools that are in one, by the tools' names."""
    return {
        tool["function"]["name"]: str(given.get("name") or "")
        for given in tools
        if isinstance(given, Mapping) and given.get("type") == "namespace"
        for tool in of_openai([given])
    }


def thinking(effort: Any, name: str) -> dict[str, Any]:
    """Returns what templates are told of `effort`, a word; "none": no thoughts. Raises ProblemError."""
    if effort is None:
        return {}
    if not isinstance(effort, str) or not EFFORT.fullmatch(effort):
        raise refused(name, ": must be a word, such as none, low, medium or high")
    return {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {})}


def extras_of(
    model: Model, tools: Iterable[Tool], named: Mapping[str, Any], continues: bool = False
) -> dict[str, Any]:
    """Returns what belongs to the messages that the ensemble is asked with."""
    made: dict[str, Any] = {}
    given = list(tools)
    if given and model.template is not None and model.template.probe.writes_tools:
        made["tools"] = _json(given, "tools")
    elif given:
        log_once("skipped: %s, because the model's chat template does not write them", "all tools")
    if named:
        made["chat_template_kwargs"] = _json(named, "chat_template_kwargs")
    if continues:
        made["continue_final_message"] = True
    return made


def _json(value: Any, name: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise refused(name, ": is nested too deeply") from None
