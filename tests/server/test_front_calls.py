"""Calls that an answer must be, and texts of a schema, by the real engine through each interface."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.test_interfaces import MESSAGES
from tests.support.server.serving import Gapless

CITIES = ["Oslo", "Rome"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "of a city", "parameters": SCHEMA}
MOST = 500  # tokens, more than such an object can have with all the white space that a guide allows


def answered(served: Gapless, path: str, body: dict[str, Any]) -> Any:
    status, text = served.post_to_front(path, body)
    assert status == 200, text
    return json.loads(text)


def is_right(found: Any) -> bool:
    return found.keys() == {"city", "warm"} and found["city"] in CITIES and isinstance(found["warm"], bool)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_call_that_must_be_is_one_in_each_interface(bundled: Gapless, temperature: float) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    chat = {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}], "max_tokens": MOST}
    chat |= {"temperature": temperature, "tool_choice": named}
    (choice,) = answered(bundled, "/v1/chat/completions", {**chat, "parallel_tool_calls": False})["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert is_right(json.loads(call["function"]["arguments"]))
    response = {"input": "weather?", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}
    response |= {"temperature": temperature, "max_output_tokens": MOST, "parallel_tool_calls": False}
    (item,) = answered(bundled, "/v1/responses", response)["output"]
    assert is_right(json.loads(item["arguments"]))
    message = {"messages": MESSAGES, "max_tokens": MOST, "temperature": temperature}
    message |= {"tools": [{"name": "weather", "input_schema": SCHEMA}]}
    message["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    made = answered(bundled, "/v1/messages", message)
    assert (made["stop_reason"], is_right(made["content"][0]["input"])) == ("tool_use", True)


def test_a_text_follows_its_schema_whole_and_streamed(bundled: Gapless) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    chat = {"messages": MESSAGES, "max_tokens": MOST, "temperature": 1, "seed": 3, "response_format": form}
    (choice,) = answered(bundled, "/v1/chat/completions", chat)["choices"]
    assert is_right(json.loads(choice["message"]["content"]))
    lines = bundled.post_to_front("/v1/chat/completions", {**chat, "stream": True})[1].strip().split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == choice["message"]["content"]


def test_a_schema_that_can_not_be_followed_is_refused_by_the_clients_name(bundled: Gapless) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    status, text = bundled.post_to_front(
        "/v1/chat/completions", {"messages": MESSAGES, "response_format": form}
    )
    assert (status, json.loads(text)["error"]["param"]) == (400, "response_format")
