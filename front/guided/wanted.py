"""What a text must look like, as clients say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from front.errors import refused
from front.guided.guide import Format
from front.guided.lenient import OBJECT, followable


@dataclass(frozen=True, slots=True)
class Wanted:
    """`field`: of the client's request, which says it."""

    form: Format
    field: str


def wanted(given: Any, field: str, is_strict: bool = False) -> Wanted | None:
    """Returns the format of a text in OpenAI's or Anthropic's words; None: any text. A schema is in the
    format itself, or in `json_schema` of a chat's. `is_strict`: it is, without a word of it; Anthropic's are.
    Raises ProblemError.
    """
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Wanted(_schema(given.get("schema", OBJECT), f"{field}.schema"), field)
    if kind == "json_schema":
        inner = given.get("json_schema", given)
        place = field if inner is given else f"{field}.json_schema"
        inner = inner if isinstance(inner, Mapping) else {}
        form = _schema(inner.get("schema"), f"{place}.schema")
        if not is_strict and inner.get("strict") is not True and form["json_schema"] is not True:
            form["json_schema"] = followable(form["json_schema"])
        return Wanted(form, field)
    if kind == "structural_tag" and isinstance(given.get("format"), Mapping):
        return Wanted(dict(given["format"]), field)
    said = f" = {str(kind)[:40]!r}: must be text, json_object, json_schema or structural_tag"
    raise refused(f"{field}.type", said, "unsupported_value")


def _schema(schema: Any, place: str) -> Format:
    if not isinstance(schema, Mapping) and schema is not True:
        raise refused(place, ": must be a JSON schema, an object", "invalid_type")
    return {"type": "json_schema", "json_schema": schema}
