"""The grammar of a JSON schema. Called by `grammars` and `structural_tags`."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher

from python_backends.guides.errors import GuideError

# between two marks of JSON: endless white space would be a valid answer too
SPACE = r"[ ]?(\n[ \t]{0,32})?"


def schema_grammar(schema: Any) -> str:
    """Raises GuideError if it can't be a schema. What is in it is checked when it is compiled."""
    if not isinstance(schema, dict | bool):
        raise GuideError("must be a JSON schema: an object, true or false")
    if schema is False:
        raise GuideError("must not be false: no JSON fits that")
    space: Any = {"whitespace_pattern": SPACE}
    try:
        text = json.dumps({} if schema is True else schema)
        return LLMatcher.grammar_from_json_schema(text, defaults=space)
    except (ValueError, RecursionError) as error:
        raise GuideError(f"must be a JSON schema ({error})") from error
