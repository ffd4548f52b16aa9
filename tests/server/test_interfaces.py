"""The front's other interfaces against a whole server, over plain HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.server.serving import ROOT, Gapless

QUESTION = "Convert to camelCase: def read_all_lines(file_name): pass"
ANSWER = "def readAllLines(fileName): pass"
MESSAGES = [{"role": "user", "content": QUESTION}]
RECORDED = Path(ROOT) / "tests/pure/front/recorded"


def events(served: Gapless, path: str, body: dict[str, Any]) -> list[Any]:
    text = served.post_to_front(path, {**body, "stream": True})[1]
    return [json.loads(each.split("data: ")[1]) for each in text.strip().split("\n\n")]


def test_the_example_of_the_docs_works(bundled: Gapless) -> None:
    (code,) = re.findall(r"```python\n(from openai.*?)```", (ROOT / "docs/responses.md").read_text(), re.S)
    code = code.replace(":9000/", f":{bundled.front_port}/").replace("SmolLM2-135M-Instruct", "bundled")
    code = code.replace("What is the capital of France?", QUESTION)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == ANSWER


def test_a_response_is_the_chats_answer_whole_and_streamed(bundled: Gapless) -> None:
    body = {"model": "bundled", "input": QUESTION, "temperature": 0, "top_logprobs": 2}
    whole = bundled.ask_front("/v1/responses", body)
    Response.model_validate(whole, strict=True)
    text = whole["output"][0]["content"][0]
    assert (whole["status"], text["text"]) == ("completed", ANSWER)
    assert b"".join(bytes(entry["bytes"]) for entry in text["logprobs"]).decode() == ANSWER
    came = events(bundled, "/v1/responses", body)
    for each in came:
        TypeAdapter(ResponseStreamEvent).validate_python(each, strict=True)
    assert "".join(each["delta"] for each in came if "delta" in each) == ANSWER
    assert came[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{bundled.front_port}/v1", api_key="none") as sdk:
        assert sdk.responses.create(**body).output_text == ANSWER  # type: ignore[call-overload]


def test_a_message_is_the_chats_answer_whole_and_streamed(bundled: Gapless) -> None:
    body = {"model": "bundled", "messages": MESSAGES, "temperature": 0, "max_tokens": 100_000}
    whole = bundled.ask_front("/v1/messages", body)
    assert (whole["stop_reason"], whole["content"][0]["text"]) == ("end_turn", ANSWER)
    came = events(bundled, "/v1/messages", body)
    assert "".join(each["delta"]["text"] for each in came if each["type"] == "content_block_delta") == ANSWER
    counted = bundled.ask_front("/v1/messages/count_tokens", {"messages": MESSAGES})
    usage = whole["usage"]
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_a_message_says_which_stop_sequence_ended_it(bundled: Gapless) -> None:
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 100, "stop_sequences": ["zzz", "(file"]}
    for answer in (
        bundled.ask_front("/v1/messages", body),
        events(bundled, "/v1/messages", body)[-2]["delta"],
    ):
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "(file")


def test_an_answer_goes_on_with_the_beginning_that_it_is_given(bundled: Gapless) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "def readAll"}]
    body = {"messages": begun, "temperature": 0, "max_tokens": 100}
    message = bundled.ask_front("/v1/messages", body)
    assert message["content"][0]["text"] == ANSWER.removeprefix("def readAll")
    status, text = bundled.post_to_front("/v1/chat/completions", {**body, "continue_final_message": True})
    assert (status, json.loads(text)["choices"][0]["message"]["content"]) == (
        200,
        ANSWER.removeprefix("def readAll"),
    )


def test_the_second_turn_of_a_recorded_session_finds_the_first_one_in_the_cache(gapless: Gapless) -> None:
    """All whole blocks of the first prompt."""
    first, second = json.loads((RECORDED / "claude_code.json").read_text())
    prompt = gapless.ask_front("/v1/messages/count_tokens", {**first, "model": None})
    for body in (first, second):
        came = events(gapless, "/v1/messages", {**body, "model": None, "max_tokens": 5})
    usage = came[-2]["usage"]
    assert usage["cache_read_input_tokens"] > prompt["input_tokens"] - 32
    first, second = json.loads((RECORDED / "codex.json").read_text())
    for body in (first, second):
        came = events(gapless, "/v1/responses", {**body, "model": None, "max_output_tokens": 5})
    usage = came[-1]["response"]["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] > usage["input_tokens"] / 2
