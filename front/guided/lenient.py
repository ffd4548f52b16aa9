"""What a guide can follow of schemas that are not strict: of tools, and of texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from front.tools import Tool

OBJECT = {"type": "object"}
BEYOND = re.compile(r"\(\?<?[=!]|\\[1-9]")  # look-around and back-references, which no guide has


def lenient(tools: Sequence[Tool], strict: Collection[str]) -> list[Tool]:
    """Returns the tools, and of those that are not `strict`, by their names, only what a guide can follow of
    their schemas.
    """
    return [
        tool
        if tool["function"]["name"] in strict
        else {**tool, "function": {**tool["function"], "parameters": _object(tool["function"])}}
        for tool in tools
    ]


def _object(function: Mapping[str, Any]) -> Mapping[str, Any]:
    given = function.get("parameters")
    return {**followable(given), **OBJECT} if isinstance(given, Mapping) else OBJECT


def followable(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what a guide can follow of a schema; of one that is nested too deeply, that it is an object."""
    try:
        schema = _without_beyond(given)
    except RecursionError:
        return OBJECT
    asked = schema.get("x-guidance")
    guidance = {**(asked if isinstance(asked, Mapping) else {}), "lenient": True}
    return {**schema, "x-guidance": guidance}


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
