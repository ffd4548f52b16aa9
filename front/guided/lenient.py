"""What a guide can follow of the schemas of tools that are not strict. Called by `expecting`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from front.guided.wanted import OBJECT
from front.tools import Tool

BEYOND = re.compile(r"\(\?<?[=!]|\\[1-9]")  # look-around and back-references, which no guide has


def lenient(tools: Sequence[Tool], strict: Collection[str]) -> list[Tool]:
    """Returns the tools, and of those that are not `strict`, by their names, only what a guide can follow of
    their schemas.
    """
    return [
        tool
        if tool["function"]["name"] in strict
        else {**tool, "function": {**tool["function"], "parameters": _followable(tool["function"])}}
        for tool in tools
    ]


def _followable(function: Mapping[str, Any]) -> Mapping[str, Any]:
    given = function.get("parameters")
    if not isinstance(given, Mapping):
        return OBJECT
    try:
        schema = _without_beyond(given)
    except RecursionError:
        return OBJECT
    asked = schema.get("x-guidance")
    guidance = {**(asked if isinstance(asked, Mapping) else {}), "lenient": True}
    return {**schema, "type": "object", "x-guidance": guidance}


def _without_beyond(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_beyond(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {name: _without_beyond(each) for name, each in value.items() if not _is_beyond(name, each)}


def _is_beyond(name: str, value: Any) -> bool:
    if name == "$ref":
        return isinstance(value, str) and not value.startswith("#")
    return name == "pattern" and isinstance(value, str) and BEYOND.search(value) is not None
