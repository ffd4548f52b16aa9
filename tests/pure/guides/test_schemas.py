"""Texts drawn under a schema's masks are JSON that the schema validates, as another library sees it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.support.guided import drawn, matcher
from tests.support.schemas import NUM_RANDOM, SCHEMAS, random_schema


def check(schema: dict[str, Any], seed: int) -> bool:
    """Whether the text that was drawn is whole; then it is valid."""
    text, is_whole = drawn(matcher("json_schema", json.dumps(schema)), seed, 300)
    if is_whole:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    return is_whole


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_text_that_is_whole_is_valid(name: str) -> None:
    whole = [check(SCHEMAS[name], seed) for seed in range(4)]
    assert any(whole)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_RANDOM, 50))
def test_so_is_a_text_of_a_schema_that_was_made_at_random(first: int) -> None:
    whole = [check(random_schema(seed), seed) for seed in range(first, first + 50)]
    assert sum(whole) > 25
