"""Thirty turns of a coding agent's session: what a turn adds to the conversation is computed, the rest comes
from the cache.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server.serving import Gapless
from tests.support.server.toy_model import write_toy_model
from tests.support.toy_engine import toy_settings

RECORDED = Path(__file__).parents[1] / "pure/front/recorded"
NUM_TURNS = 30
SHARE = 0.95  # of a later turn's prompt
MOST_COMPUTED = 200  # tokens of a later turn: what it adds, and a block that was not full
INSTRUCTIONS = " ".join(f"Rule {number}: run the tests of module {number} first." for number in range(320))

Body = dict[str, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gapless]:
    model = write_toy_model(tmp_path_factory.mktemp("models") / "model")
    made = Gapless(**{**toy_settings(model), "model.max_model_tokens": 16384})
    yield made
    assert made.stop() == 0, made.log


def first_body(name: str) -> Body:
    """The first request of the recorded session, with instructions as long as an agent's are."""
    body: Body = json.loads((RECORDED / f"{name}.json").read_text())[0]
    body |= {"model": "model", "stream": False, "temperature": 0}
    if name == "claude_code":
        body["system"][-1]["text"] += INSTRUCTIONS
        return body | {"max_tokens": 24}
    body["input"][0]["content"][0]["text"] += INSTRUCTIONS
    return body | {"max_output_tokens": 24}


def message_turn(body: Body, answer: Body, number: int) -> None:
    """As Claude Code goes on: with the answer, a question and another header."""
    body["system"][0]["text"] = f"x-anthropic-billing-header: cc_version=2.1.197.1c0; cch={number:05x};"
    said = {"type": "text", "text": f"Turn {number}: what else?"}
    body["messages"] += [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [said]},
    ]


def response_turn(body: Body, answer: Body, number: int) -> None:
    """As Codex goes on."""
    said = {"type": "input_text", "text": f"Turn {number}: what else?"}
    body["input"] += [*answer["output"], {"type": "message", "role": "user", "content": [said]}]


def message_usage(usage: Body) -> tuple[int, int]:
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached + usage["cache_creation_input_tokens"], cached


def response_usage(usage: Body) -> tuple[int, int]:
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


def ask(served: Gapless, path: str, body: Body) -> Body:
    connection = http.client.HTTPConnection("127.0.0.1", served.front_port, timeout=120)
    connection.request("POST", path, json.dumps(body))
    answer: Body = json.loads(connection.getresponse().read())
    connection.close()
    return answer


@pytest.mark.parametrize(
    ("name", "path", "turn", "counts"),
    [
        ("claude_code", "/v1/messages", message_turn, message_usage),
        ("codex", "/v1/responses", response_turn, response_usage),
    ],
)
def test_the_prompt_of_each_later_turn_comes_from_the_cache(
    served: Gapless,
    name: str,
    path: str,
    turn: Callable[[Body, Body, int], None],
    counts: Callable[[Body], tuple[int, int]],
) -> None:
    body, found = first_body(name), []
    for number in range(NUM_TURNS):
        answer = ask(served, path, body)
        found.append(counts(answer["usage"]))
        turn(body, answer, number)
    (first, cached), *later = found
    assert first > 4000
    assert cached < first / 2
    assert all(prompt > before for (prompt, _), (before, _) in zip(later, found, strict=False))
    assert min(cached / prompt for prompt, cached in later) >= SHARE
    assert max(prompt - cached for prompt, cached in later) <= MOST_COMPUTED
