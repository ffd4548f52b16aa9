"""The texts that custom tools take: by their grammars, as what the arguments of a call must be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from front.errors import refused
from front.guided.escaped import CannotQuoteError
from front.guided.guide import Format
from front.guided.quoted import quoted

NAMES = ("syntax", "definition")
MOST_CHARS = (
    16 * 1024
)  # of all grammars of a request: they are read beside all other streams, for 0.3 s at most


def inputs_of(tools: Iterable[Any], field: str = "tools") -> dict[str, Format]:
    """Returns the formats of the arguments, by the names of the custom tools that have a grammar. In a chat
    each is in an object `custom` and one `grammar`, in a response in none. Raises ProblemError.
    """
    made: dict[str, Format] = {}
    num_chars = 0
    for name, form, place in _found(tools, field):
        num_chars += len(str(form.get("definition"))) if isinstance(form, Mapping) else 0
        if num_chars > MOST_CHARS:
            said = f": the grammars of all custom tools must have at most {MOST_CHARS:,} characters"
            raise refused(f"{place}.definition", said)
        made[name] = _input(form, place)
    return made


def _found(tools: Iterable[Any], field: str, is_inside: bool = False) -> Iterator[tuple[str, Any, str]]:
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            continue
        place = f"{field}[{i}]"
        if tool.get("type") == "namespace" and not is_inside and isinstance(tool.get("tools"), list):
            yield from _found(tool["tools"], f"{place}.tools", is_inside=True)
        elif tool.get("type") == "custom":
            given = tool.get("custom", tool)
            form = given.get("format") if isinstance(given, Mapping) else None
            if isinstance(form, Mapping) and form.get("type") == "grammar":
                yield str(given.get("name")), form.get("grammar", form), f"{place}.format"


def _input(form: Any, place: str) -> Format:
    syntax, definition = (form.get(name) if isinstance(form, Mapping) else None for name in NAMES)
    if not isinstance(definition, str):
        raise refused(f"{place}.definition", ": must be a text", "invalid_type")
    if syntax == "regex":
        text = {"type": "string", "pattern": f"^(?:{definition})$"}
        schema = {"type": "object", "properties": {"input": text}, "required": ["input"]}
        return {"type": "json_schema", "json_schema": {**schema, "additionalProperties": False}}
    if syntax != "lark":
        raise refused(f"{place}.syntax", f" = {str(syntax)[:40]!r}: must be lark or regex")
    try:
        grammar = {"type": "grammar", "grammar": quoted(definition)}
    except CannotQuoteError as error:
        raise refused(f"{place}.definition", f": {error}") from None
    before, after = ({"type": "const_string", "value": value} for value in ('{"input": "', '"}'))
    return {"type": "sequence", "elements": [before, grammar, after]}
