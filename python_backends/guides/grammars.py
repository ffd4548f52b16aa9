"""The grammar, as llguidance writes it, of a guide of any type. Nothing is compiled here.

Called by the door, which sends the grammar on: nothing after it knows types of guides.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from llguidance import LLMatcher

from python_backends.guides.errors import GuideError
from python_backends.guides.lark import as_lark
from python_backends.guides.schemas import schema_grammar
from python_backends.guides.structural_tags import structural_tag_grammar


def grammar_of(kind: str, guide: str) -> str:
    """The grammar of a guide of a type in TYPES. Raises GuideError, which says what is wrong with it."""
    return TYPES[kind](guide)


def _json(guide: str) -> str:
    if guide:
        raise GuideError("must be empty: with a schema, guided_decoding_guide_type is json_schema")
    return schema_grammar({})


def _json_schema(guide: str) -> str:
    try:
        schema = json.loads(guide)
    except (ValueError, RecursionError) as error:
        raise GuideError(f"must be a JSON schema ({error})") from error
    return schema_grammar(schema)


def _regex(guide: str) -> str:
    return LLMatcher.grammar_from_regex(guide)


def _grammar(guide: str) -> str:
    return LLMatcher.grammar_from_lark(as_lark(guide))


TYPES: dict[str, Callable[[str], str]] = {
    "json": _json,
    "json_schema": _json_schema,
    "regex": _regex,
    "grammar": _grammar,
    "ebnf_grammar": _grammar,
    "structural_tag": structural_tag_grammar,
}
