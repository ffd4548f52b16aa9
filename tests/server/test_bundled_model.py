"""The bundled model as `make serve` starts it, but in float32: texts are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.server.serving import Gapless

INSTRUCTION = "Convert to camelCase: read_all_lines"
BLOCK_TOKENS = 32


@pytest.fixture(scope="module")
def gapless() -> Iterator[Gapless]:
    served = Gapless(**{"model.dtype": "float32"})
    yield served
    assert served.stop() == 0, served.log


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def test_the_bundled_model_answers_and_ends_by_itself(gapless: Gapless) -> None:
    answer = gapless.generate(messages=json.dumps([user(INSTRUCTION)]), return_num_output_tokens=True)
    assert answer["finish_reason"] == "stop"
    assert answer["text_output"].strip()
    assert answer["num_output_tokens"] < 256


def test_a_killed_instance_changes_no_text(gapless: Gapless) -> None:
    """Float32, greedy: 16 streams are the same text as before, although the instance dies under them."""
    inputs = [
        {"text_input": f"def read_{n}(self, size", "max_tokens": 120, "min_tokens": 120} for n in range(16)
    ]
    undisturbed = [gapless.generate(**each)["text_output"] for each in inputs]
    client = gapless.grpc()
    answers = [client.ask(f"{n}", **each) for n, each in enumerate(inputs)]
    client.read_until(lambda: all(answer.chunks > 2 for answer in answers))
    gapless.kill(gapless.instance_pid())
    client.finish()
    client.close()
    assert [answer.text for answer in answers] == undisturbed
    assert all(answer.reasons == ["length"] for answer in answers)


def test_the_second_turn_of_a_chat_pays_its_new_suffix_and_at_most_one_block(gapless: Gapless) -> None:
    turn_1 = [
        user(
            "Write a comment for this function:\ndef size(self):\n    return len(self._items) +"
            " len(self._waiting)"
        )
    ]
    first = gapless.generate(
        messages=json.dumps(turn_1), return_num_input_tokens=True, return_num_output_tokens=True
    )
    known = first["num_input_tokens"] + first["num_output_tokens"]
    before = prefix_hits(gapless)
    turn_2 = [*turn_1, {"role": "assistant", "content": first["text_output"]}, user(INSTRUCTION)]
    second = gapless.generate(messages=json.dumps(turn_2), return_num_input_tokens=True)
    hits = prefix_hits(gapless) - before
    assert first["finish_reason"] == "stop"
    assert second["num_input_tokens"] > known
    assert hits > known - 1 - BLOCK_TOKENS, f"{hits} of {known} known tokens were found"


def prefix_hits(gapless: Gapless) -> float:
    return gapless.metrics()["gapless_prefix_hit_tokens_total"]


def test_a_conversation_by_seed_can_be_had_again(gapless: Gapless) -> None:
    inputs = {
        "messages": json.dumps([user(INSTRUCTION)]),
        "temperature": 1.0,
        "top_p": 0.95,
        "top_k": 50,
        "max_tokens": 40,
    }
    assert (
        gapless.generate(seed=11, **inputs)["text_output"] == gapless.generate_stream(seed=11, **inputs).text
    )
