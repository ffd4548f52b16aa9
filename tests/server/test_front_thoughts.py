"""Thoughts with a budget, and calls, outlast the processes that make them: a kill while a thought or the
arguments of a call are written changes nothing of what follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import openai
import pytest
from tokenizers import Tokenizer

from front.bounded_thoughts import SENTENCE
from tests.support.server.serving import Gapless
from tests.support.server.toy_model import EOS
from tests.support.tool_model import SHOWN, write_tool_model
from tests.support.toy_engine import toy_settings

NAME = "model"
NUM_DELTAS = 10  # that have come when a process is killed
SWITCHES: dict[str, Any] = {
    "type": "object",
    "properties": {"on": {"type": "array", "items": {"type": "boolean"}, "minItems": 60, "maxItems": 64}},
    "required": ["on"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_pattern": ""},  # its tokens are for the JSON
}
CALLS: dict[str, Any] = {
    "max_tokens": 500,
    "tools": [{"type": "function", "function": {"name": "switch", "parameters": SWITCHES}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tool_model(tmp_path_factory.mktemp("models") / NAME)


@pytest.fixture(scope="module")
def bounded(model: Path) -> dict[str, Any]:
    """A thought that the model does not end by itself."""
    token_to_id = Tokenizer.from_file(str(model / "tokenizer.json")).token_to_id
    thinking = {"thinking_token_budget": 250, "chat_template_kwargs": {"enable_thinking": True}}
    never = {str(token_to_id(text)): -100 for text in (*SHOWN, EOS)}
    return {"max_tokens": 400, "logit_bias": never, "extra_body": thinking}


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Gapless]:
    """10 ms a step: a thought takes more than two seconds."""
    with Gapless(**{**toy_settings(model, step_ms=10), "streams.dead_after_s": 3}) as made:
        yield made


def streamed(served: Gapless, case: dict[str, Any], then: Callable[[], None]) -> dict[str, str]:
    """The texts of a streamed chat: thought, text, arguments, reason. `then` is called once NUM_DELTAS have
    come, which must be of one kind.
    """
    made: dict[str, str] = dict.fromkeys(("thought", "text", "arguments", "reason"), "")
    num_deltas = 0
    messages = [{"role": "user", "content": "Think."}]
    url = f"http://127.0.0.1:{served.front_port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=300) as sdk:
        for chunk in sdk.chat.completions.create(
            model=NAME, messages=messages, stream=True, temperature=1.0, seed=3, **case
        ):
            for choice in chunk.choices:
                called = choice.delta.tool_calls or []
                more = {
                    "thought": getattr(choice.delta, "reasoning_content", "") or "",
                    "text": choice.delta.content or "",
                    "arguments": "".join(call.function.arguments or "" for call in called),
                    "reason": choice.finish_reason or "",
                }
                made = {kind: text + more[kind] for kind, text in made.items()}
                num_deltas += any(more.values())
                if num_deltas == NUM_DELTAS and any(more.values()):
                    assert len([text for text in made.values() if text]) == 1, made
                    then()
    return made


def nothing() -> None:
    pass


def killing(served: Gapless, process: str) -> Callable[[], None]:
    pid = served.server_pid() if process == "tritonserver" else served.instance_pid()
    return lambda: served.kill(pid)


@pytest.mark.parametrize("process", ["instance", pytest.param("tritonserver", marks=pytest.mark.slow)])
def test_a_thought_with_a_budget_goes_on_after_a_kill_and_is_closed_at_the_same_place(
    served: Gapless, bounded: dict[str, Any], process: str
) -> None:
    whole = streamed(served, bounded, nothing)
    assert whole["thought"].endswith(SENTENCE.strip())
    assert whole["text"]
    assert streamed(served, bounded, killing(served, process)) == whole


@pytest.mark.parametrize("process", ["instance", pytest.param("tritonserver", marks=pytest.mark.slow)])
def test_the_arguments_of_a_call_go_on_after_a_kill(served: Gapless, process: str) -> None:
    whole = streamed(served, CALLS, nothing)
    jsonschema.validate(json.loads(whole["arguments"]), SWITCHES)
    assert (whole["text"], whole["reason"]) == ("", "tool_calls")
    assert streamed(served, CALLS, killing(served, process)) == whole
