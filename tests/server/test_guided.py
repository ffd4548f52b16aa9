"""Answers that follow a guide through a real Triton: valid JSON, refusals, and the same JSON though the
instance is killed in the middle.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.support.schemas import SCHEMAS
from tests.support.server.serving import Gapless

PERSON = SCHEMAS["person"]
PROMPT = "A person:"


def guided(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "text_input": PROMPT,
        "max_tokens": 200,
        "guided_decoding_guide_type": "json_schema",
        "guided_decoding_guide": json.dumps(schema),
        **more,
    }


@pytest.mark.parametrize("name", ["person", "one of two records", "tree"])
def test_an_answer_is_json_of_its_schema(gapless: Gapless, name: str) -> None:
    for seed in range(3):
        answer = gapless.generate(**guided(SCHEMAS[name], temperature=1.0, seed=seed))
        assert answer["finish_reason"] in ("stop", "length")
        if answer["finish_reason"] == "stop":
            jsonschema.validate(json.loads(answer["text_output"]), SCHEMAS[name])


def test_a_guide_that_can_not_be_followed_is_refused(gapless: Gapless) -> None:
    answer = gapless.generate(**guided({"type": "wrong"}))
    assert answer["status"] == 400
    assert "guided_decoding_guide (json_schema): Invalid type: wrong" in answer["error"]


def test_the_json_is_the_same_though_the_instance_is_killed_in_its_middle(gapless: Gapless) -> None:
    """Four answers of one prompt, as with `n` = 4."""
    schema = {"type": "array", "items": PERSON, "minItems": 12, "maxItems": 14}
    asked = [guided(schema, temperature=1.0, seed=seed, max_tokens=600) for seed in range(4)]
    whole = [gapless.generate(**fields)["text_output"] for fields in asked]
    client = gapless.grpc()
    answers = [client.ask(str(seed), **fields) for seed, fields in enumerate(asked)]
    client.read_until(lambda: all(answer.chunks > 1 for answer in answers))
    gapless.kill(gapless.instance_pid())
    client.finish(120)
    client.close()
    assert [answer.text for answer in answers] == whole
    for text in whole:
        jsonschema.validate(json.loads(text), schema)
