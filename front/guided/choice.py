"""Which tools an answer may or must call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from front.errors import refused
from front.tools import Tool

AUTO, NONE, REQUIRED = "auto", "none", "required"


@dataclass(frozen=True, slots=True)
class Choice:
    """`names`: of the tools that may be called; None: all."""

    mode: str = AUTO
    names: frozenset[str] | None = None

    def among(self, tools: Collection[Tool], field: str) -> list[Tool]:
        """Returns the tools that may be called. Raises ProblemError if one must be, and there is none."""
        known = {tool["function"]["name"] for tool in tools}
        for name in sorted(self.names or ()):
            if name not in known and self.mode == REQUIRED:
                raise refused(field, f": there is no tool {name[:64]!r} in tools")
        if self.mode == REQUIRED and not tools:
            raise refused(field, ": needs tools")
        if self.mode == NONE:
            return []
        return [tool for tool in tools if self.names is None or tool["function"]["name"] in self.names]


def of_openai(given: Any, field: str = "tool_choice") -> Choice:
    """Of a chat's or a response's tool_choice: in the former each has an object of the name of its type, in
    the latter none. Raises ProblemError.
    """
    if given is None:
        return Choice()
    if isinstance(given, str):
        return Choice(_mode(given, field))
    kind = str(given.get("type"))
    inner = given.get(kind, given) if isinstance(given, Mapping) else None
    if kind in ("function", "custom") and isinstance(inner, Mapping) and isinstance(inner.get("name"), str):
        return Choice(REQUIRED, frozenset({inner["name"]}))
    if kind == "allowed_tools" and isinstance(inner, Mapping) and isinstance(inner.get("tools"), list):
        names = (_name(tool) for tool in inner["tools"])
        return Choice(_mode(inner.get("mode"), f"{field}.mode"), frozenset(filter(None, names)))
    said = ": must be auto, none, required, a function or a custom tool by its name, or allowed_tools"
    raise refused(field, said)


def _name(tool: Any) -> str | None:
    inner = tool.get(str(tool.get("type")), tool) if isinstance(tool, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None


def _mode(given: Any, field: str) -> str:
    if given not in (AUTO, NONE, REQUIRED):
        raise refused(field, f" = {str(given)[:40]!r}: must be auto, none or required")
    return str(given)


def of_anthropic(given: Mapping[str, Any] | None) -> Choice:
    """Raises ProblemError."""
    kind = (given or {}).get("type", AUTO)
    if kind == "tool" and isinstance(name := (given or {}).get("name"), str):
        return Choice(REQUIRED, frozenset({name}))
    if kind in (AUTO, NONE):
        return Choice(kind)
    if kind == "any":
        return Choice(REQUIRED)
    raise refused("tool_choice.type", f" = {str(kind)[:40]!r}: must be auto, any, tool with a name, or none")
