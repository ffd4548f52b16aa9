"""The grammar of a JSON schema. Called by `grammars` and `structural_tags`."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher

from python_backends.guides.errors import GuideError

# between two marks of JSON: endless white space would be a valid answer too
SPACE = r"[ ]?(\n[ \t]{0,32})?"
# llguidance has numbers of 64 bits with a point: from 2 ** 53 on, not every whole number
EXACT = 1 << 53
MOST = (1 << 63) - 1  # of an integer
MOST_EXACT = (1 << 63) - 1024  # the greatest below it that these 64 bits have
UPPER, LOWER = ("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")
NAMED = ("properties", "patternProperties", "$defs", "definitions")  # schemas by names of a client
SAID = ("default", "example", "examples")  # without effect


def schema_grammar(schema: Any) -> str:
    """Raises GuideError if it can't be a schema. What is in it is checked when it is compiled."""
    if not isinstance(schema, dict | bool):
        raise GuideError("must be a JSON schema: an object, true or false")
    if schema is False:
        raise GuideError("must not be false: no JSON fits that")
    space: Any = {"whitespace_pattern": SPACE}
    try:
        text = json.dumps({} if schema is True else _exact(schema))
        return LLMatcher.grammar_from_json_schema(text, defaults=space)
    except GuideError:
        raise
    except (ValueError, RecursionError) as error:
        raise GuideError(f"must be a JSON schema ({error})") from error


def _exact(schema: Any) -> Any:
    """The same schema, with bounds that llguidance has. Raises GuideError for numbers it would change."""
    if isinstance(schema, list):
        return [_exact(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _value(schema, name) for name in schema}


def _value(schema: dict[str, Any], name: str) -> Any:
    value = schema[name]
    if name in NAMED and isinstance(value, dict):
        return {each: _exact(inner) for each, inner in value.items()}
    if name in ("const", "enum"):
        _refuse_inexact(name, value)
    elif name in UPPER and type(value) is int:
        value = min(value, MOST if schema.get("type") == "integer" else MOST_EXACT)
        _refuse_inexact(name, value if value != MOST else 0)
    elif name in LOWER and type(value) is int:
        value = max(value, -MOST_EXACT)
        _refuse_inexact(name, value)
    elif name not in SAID:
        return _exact(value)
    return value


def _refuse_inexact(name: str, value: Any) -> None:
    """Raises GuideError for whole numbers in it that would become others."""
    if isinstance(value, list):
        for each in value:
            _refuse_inexact(name, each)
    elif isinstance(value, dict):
        _refuse_inexact(name, list(value.values()))
    elif type(value) is int and abs(value) > EXACT and not _is_exact(value):
        raise GuideError(
            f"{name}: {str(value)[:40]} would become another number; must be at most 2**53 in size"
        )


def _is_exact(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
