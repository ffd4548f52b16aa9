"""Answers that follow a guide through a real Triton: valid JSON, refusals, and the same JSON though the
instance is killed in the middle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.support.schemas import NUM_RANDOM, SCHEMAS, random_schema
from tests.support.server.disturbing import ask, finished, num_losses, num_moves, two_instances
from tests.support.server.serving import Gapless
from tests.support.toy_engine import toy_settings

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


@pytest.mark.slow
def test_answers_of_many_schemas_are_the_same_though_they_move_and_instances_are_killed(
    gapless: Gapless, toy_model: Path
) -> None:
    schemas = [random_schema(seed) for seed in range(NUM_RANDOM)]
    asked = [guided(schema, temperature=1.0, seed=seed) for seed, schema in enumerate(schemas)]
    client, answers = ask(gapless, asked)
    whole = finished(client, answers)
    reasons = [reason for answer in answers for reason in answer.reasons]
    assert set(reasons) <= {"stop", "length"}
    assert reasons.count("stop") > NUM_RANDOM // 2
    for schema, text, reason in zip(schemas, whole, reasons, strict=True):
        if reason == "stop":
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    with two_instances(**toy_settings(toy_model, step_ms=40), **{"streams.dead_after_s": 3}) as served:
        client, answers = ask(served, asked)
        for instance in range(2):
            most = (instance + 1) * NUM_RANDOM // 4
            client.read_until(lambda most=most: sum(answer.num_ends for answer in answers) > most, 300)
            served.kill(served.instance_pid(instance))
        assert finished(client, answers) == whole
        assert (num_losses(served), num_moves(served) > 10) == (2, True)
