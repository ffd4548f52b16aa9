"""What the bundled model answers, and what it need not compute again."""

from __future__ import annotations

import json

from tests.support.server.serving import Gapless

INSTRUCTION = "Convert to camelCase: read_all_lines"
BLOCK_TOKENS = 32


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def test_the_bundled_model_answers_and_ends_by_itself(bundled: Gapless) -> None:
    answer = bundled.generate(messages=json.dumps([user(INSTRUCTION)]), return_num_output_tokens=True)
    assert answer["finish_reason"] == "stop"
    assert answer["text_output"].strip()
    assert answer["num_output_tokens"] < 256


def test_the_second_turn_of_a_chat_pays_its_new_suffix_and_at_most_one_block(bundled: Gapless) -> None:
    turn_1 = [
        user(
            "Write a comment for this function:\ndef size(self):\n    return len(self._items) +"
            " len(self._waiting)"
        )
    ]
    first = bundled.generate(
        messages=json.dumps(turn_1), return_num_input_tokens=True, return_num_output_tokens=True
    )
    known = first["num_input_tokens"] + first["num_output_tokens"]
    before = prefix_hits(bundled)
    turn_2 = [*turn_1, {"role": "assistant", "content": first["text_output"]}, user(INSTRUCTION)]
    second = bundled.generate(messages=json.dumps(turn_2), return_num_input_tokens=True)
    hits = prefix_hits(bundled) - before
    assert first["finish_reason"] == "stop"
    assert second["num_input_tokens"] > known
    assert hits > known - 1 - BLOCK_TOKENS, f"{hits} of {known} known tokens were found"


def prefix_hits(bundled: Gapless) -> float:
    return bundled.metrics()["gapless_prefix_hit_tokens_total"]
