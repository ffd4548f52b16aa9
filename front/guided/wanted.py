"""What a text must look like, as clients say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from front.errors import refused
from front.guided.guide import Format

OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """`field`: of the client's request, which says it."""

    form: Format
    field: str


def wanted(given: Any, field: str) -> Wanted | None:
    """Returns the format of a text in OpenAI's or Anthropic's words; None: any text. A schema is in the
    format itself, or in `json_schema` of a chat's. Raises ProblemError.
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
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        return Wanted(_schema(schema, f"{place}.schema"), field)
    if kind == "structural_tag" and isinstance(given.get("format"), Mapping):
        return Wanted(dict(given["format"]), field)
    said = f" = {str(kind)[:40]!r}: must be text, json_object, json_schema or structural_tag"
    raise refused(f"{field}.type", said, "unsupported_value")


def _schema(schema: Any, place: str) -> Format:
    if not isinstance(schema, Mapping) and schema is not True:
        raise refused(place, ": must be a JSON schema, an object", "invalid_type")
    return {"type": "json_schema", "json_schema": schema}
