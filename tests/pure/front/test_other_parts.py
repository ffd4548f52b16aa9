"""Thoughts and calls of tools in responses and in Anthropic's messages: events, in their order."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from front.open_responses.asks import ResponsesAsk
from front.open_responses.turns import turns_of
from tests.pure.front.conftest import KEY
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import Named, ask, events
from tests.support.tool_model import ANSWER, ARGUMENTS, FUNCTION, NOW, TEXT, THOUGHT, Answers

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
EVENT = TypeAdapter(ResponseStreamEvent)
ASKED: dict[str, Any] = {
    "input": "Weather?",
    "tools": [{"type": "function", **FUNCTION}, {"type": "function", **NOW}],
}
MESSAGE: dict[str, Any] = {
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": [
        {"name": each["name"], "description": "", "input_schema": each["parameters"]}
        for each in (FUNCTION, NOW)
    ],
}
SIZES = [(1,), (4, 1), (500,)]


@pytest.fixture
def answers(tool_model: Path) -> Answers:
    return Answers(tool_model)


def names(came: list[Named], prefix: str = "") -> list[str]:
    """Several of one kind that follow each other count as one."""
    return [name.removeprefix(prefix) for name, _ in groupby(came, lambda each: each[0])]


# --- responses


@pytest.mark.parametrize("sizes", SIZES)
def test_a_response_has_its_items_one_after_the_other(
    tool_front: Front, ensemble: Ensemble, answers: Answers, sizes: tuple[int, ...]
) -> None:
    ensemble.pieces = answers.pieces(ANSWER, sizes)
    came = events(tool_front, RESPONSES, ASKED)
    for _, data in came:
        EVENT.validate_python(data, strict=True)
    assert [data["sequence_number"] for _, data in came] == list(range(len(came)))
    part = ("content_part.added", "{}.delta", "{}.done", "content_part.done")
    call = ("function_call_arguments.delta", "function_call_arguments.done")
    assert names(came, "response.") == [
        *("created", "in_progress", "output_item.added"),
        *(name.format("reasoning_text") for name in part),
        *("output_item.done", "output_item.added"),
        *(name.format("output_text") for name in part),
        *("output_item.done", "output_item.added", *call, "output_item.done", "output_item.added", *call),
        *("output_item.done", "completed"),
    ]
    whole = came[-1][1]["response"]
    done = [data["item"] for name, data in came if name == "response.output_item.done"]
    assert done == whole["output"]
    assert [each["type"] for each in done] == ["reasoning", "message", "function_call", "function_call"]
    assert done[0]["content"][0]["text"] == THOUGHT
    assert done[1]["content"][0]["text"] == TEXT
    assert [(each["name"], each["arguments"], each["status"]) for each in done[2:]] == [
        ("weather", ARGUMENTS, "completed"),
        ("now", "{}", "completed"),
    ]
    assert all(each["id"] != each["call_id"] for each in done[2:])
    assert 0 < whole["usage"]["output_tokens_details"]["reasoning_tokens"] < whole["usage"]["output_tokens"]


def test_a_whole_response_says_the_same(tool_front: Front, ensemble: Ensemble, answers: Answers) -> None:
    ensemble.pieces = answers.pieces(ANSWER)
    answer = ask(tool_front, RESPONSES, ASKED)[2]
    Response.model_validate(answer, strict=True)
    with openai.OpenAI(base_url=f"{tool_front.url}/v1", api_key=KEY, max_retries=0) as sdk:
        found = sdk.responses.create(model="tools", **ASKED)
        with sdk.responses.stream(model="tools", **ASKED) as stream:
            list(stream)
            streamed = stream.get_final_response()
    for each in (found, streamed):
        assert each.output_text == TEXT
        assert [item.arguments for item in each.output if item.type == "function_call"] == [ARGUMENTS, "{}"]


def test_a_custom_tools_call_has_a_text_and_a_tools_namespace_comes_back(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    called = json.dumps({"name": "patch", "arguments": {"input": "*** Begin\n"}})
    ensemble.pieces = answers.pieces(f"<tool_call>{called}</tool_call>", (3,))
    tools = [{"type": "namespace", "name": "shell", "tools": [{"type": "custom", "name": "patch"}]}]
    came = events(tool_front, RESPONSES, {"input": "x", "tools": tools})
    for _, data in came:
        EVENT.validate_python(data, strict=True)
    assert names(came, "response.")[3:-2] == ["custom_tool_call_input.delta", "custom_tool_call_input.done"]
    (item,) = came[-1][1]["response"]["output"]
    assert (item["type"], item["input"], item["namespace"]) == ("custom_tool_call", "*** Begin\n", "shell")


def test_a_response_that_the_limit_cut_within_a_call_is_incomplete(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces(ANSWER.partition('Łódź"')[0], (2,), "length")
    name, data = events(tool_front, RESPONSES, ASKED)[-1]
    assert name == "response.incomplete"
    assert [each["status"] for each in data["response"]["output"]][-2:] == ["completed", "incomplete"]


def test_a_call_that_the_model_broke_off_is_incomplete(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces(ANSWER.partition('Łódź"')[0])
    came = events(tool_front, RESPONSES, ASKED)
    name, data = came[-1]
    assert (name, data["response"]["status"]) == ("response.completed", "completed")
    assert [each["status"] for each in data["response"]["output"]] == ["completed", "completed", "incomplete"]
    assert came[-2][1]["item"] == data["response"]["output"][-1]
    whole = ask(tool_front, RESPONSES, ASKED)[2]
    assert [each["status"] for each in whole["output"]] == ["completed", "completed", "incomplete"]


def test_a_thought_comes_back_as_it_was_given(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces(ANSWER)
    answer = ask(tool_front, RESPONSES, {**ASKED, "include": ["reasoning.encrypted_content"]})[2]
    thought = {**answer["output"][0], "content": None}
    others = {"type": "reasoning", "summary": [], "encrypted_content": "of another server"}
    said = {"role": "assistant", "content": "ok"}
    turns = turns_of(ResponsesAsk(input=[others, said, thought, said]))
    assert [turn.thought for turn in turns] == ["", THOUGHT]


@pytest.mark.parametrize("sizes", SIZES)
def test_log_probabilities_of_a_text_are_those_of_its_own_tokens(
    tool_front: Front, ensemble: Ensemble, answers: Answers, sizes: tuple[int, ...]
) -> None:
    """Not those of the thought before it and of the calls behind it. A text behind a call has its own."""
    called = ANSWER.partition("<tool_call>")[2]
    for text, wanted in ((ANSWER, [TEXT]), (f"Now.<tool_call>{called}\nIs it now?", ["Now.", "Is it now?"])):
        scores = iter(range(1000))
        ensemble.pieces = [
            replace(each, output_log_probs=tuple(-float(next(scores)) for _ in each.output_ids))
            for each in answers.pieces(text, sizes)
        ]
        body = {**ASKED, "include": ["message.output_text.logprobs"]}
        output = ask(tool_front, RESPONSES, body)[2]["output"]
        parts = [each["content"][0] for each in output if each["type"] == "message"]
        assert [part["text"] for part in parts] == wanted
        for part in parts:
            spelled = b"".join(bytes(each["bytes"]) for each in part["logprobs"])
            assert spelled.decode().strip() == part["text"]
            numbers = [-each["logprob"] for each in part["logprobs"]]
            assert numbers == list(range(int(numbers[0]), int(numbers[0]) + len(numbers)))
        came = events(tool_front, RESPONSES, body)
        streamed = [
            each for name, data in came if name == "response.output_text.delta" for each in data["logprobs"]
        ]
        said = [each["token"] for part in parts for each in part["logprobs"]]
        assert [each["token"] for each in streamed] == said


def test_only_one_call_of_a_response_where_several_may_not_be(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces(ANSWER)
    answer = ask(tool_front, RESPONSES, {**ASKED, "parallel_tool_calls": False})[2]
    assert [each["type"] for each in answer["output"]] == ["reasoning", "message", "function_call"]


# --- messages


@pytest.mark.parametrize("sizes", SIZES)
def test_a_message_has_its_blocks_one_after_the_other(
    tool_front: Front, ensemble: Ensemble, answers: Answers, sizes: tuple[int, ...]
) -> None:
    ensemble.pieces = answers.pieces(ANSWER, sizes)
    came = events(tool_front, MESSAGES, MESSAGE)
    block = ("content_block_start", "content_block_delta", "content_block_stop")
    assert names(came) == ["message_start", *block * 4, "message_delta", "message_stop"]
    blocks = [data["content_block"] for name, data in came if name == "content_block_start"]
    assert [each["type"] for each in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    deltas = [(data["index"], data["delta"]) for name, data in came if name == "content_block_delta"]
    assert [i for i, delta in deltas if delta["type"] == "signature_delta"] == [0]
    assert [each.get("input") for each in blocks] == [None, None, {}, {}]
    assert "".join(delta.get("partial_json", "") for i, delta in deltas if i == 2) == ARGUMENTS
    assert came[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_a_whole_message_says_the_same(tool_front: Front, ensemble: Ensemble, answers: Answers) -> None:
    ensemble.pieces = answers.pieces(ANSWER)
    answer = ask(tool_front, MESSAGES, MESSAGE)[2]
    thought, text, weather, now = answer["content"]
    assert thought == {"type": "thinking", "thinking": THOUGHT, "signature": thought["signature"]}
    assert (text["type"], text["text"]) == ("text", TEXT)
    assert [(each["type"], each["name"], each["input"]) for each in (weather, now)] == [
        ("tool_use", "weather", {"city": "Łódź"}),
        ("tool_use", "now", {}),
    ]
    assert weather["id"] != now["id"]
    assert answer["stop_reason"] == "tool_use"


def test_a_call_that_the_limit_cut_is_not_in_a_whole_message(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces(ANSWER.partition('Łódź"')[0], (2,), "length")
    answer = ask(tool_front, MESSAGES, MESSAGE)[2]
    assert [each["type"] for each in answer["content"]] == ["thinking", "text"]
    assert answer["stop_reason"] == "max_tokens"
    came = events(tool_front, MESSAGES, MESSAGE)
    assert (came[-3][0], came[-2][1]["delta"]["stop_reason"]) == ("content_block_stop", "max_tokens")


def test_arguments_that_are_no_object_are_a_named_error(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces('<tool_call>{"name": "now", "arguments": 3}</tool_call>', (2,))
    status, _, body = ask(tool_front, MESSAGES, MESSAGE)
    assert (status, body["error"]["type"]) == (500, "api_error")
    assert "'now'" in body["error"]["message"]
    assert events(tool_front, MESSAGES, MESSAGE)[-1][0] == "error"


def test_thoughts_may_be_left_out_of_their_blocks_and_calls_may_be_one(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces(ANSWER, (3,))
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    body = {**MESSAGE, "thinking": {"type": "adaptive", "display": "omitted"}, "tool_choice": choice}
    came = events(tool_front, MESSAGES, body)
    assert not [data for _, data in came if data.get("delta", {}).get("type") == "thinking_delta"]
    content = ask(tool_front, MESSAGES, body)[2]["content"]
    assert [each["type"] for each in content] == ["thinking", "text", "tool_use"]
    assert content[0]["thinking"] == ""
    assert content[0]["signature"]
