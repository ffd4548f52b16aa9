"""The sessions of two coding agents, as they go on turn by turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "pure/front/recorded"
INSTRUCTIONS = " ".join(f"Rule {number}: run the tests of module {number} first." for number in range(320))
NUM_TURNS = 30

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Agent:
    """`goes_on` changes a request into the next one, after its answer and with its number. `counts` returns
    of a usage the tokens of the prompt, and how many of them came from the cache.
    """

    name: str
    path: str
    goes_on: Callable[[Body, Body, int], None]
    counts: Callable[[Body], tuple[int, int]]


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


AGENTS = (
    Agent("claude_code", "/v1/messages", message_turn, message_usage),
    Agent("codex", "/v1/responses", response_turn, response_usage),
)
