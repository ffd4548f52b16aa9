"""/v1/responses over a stand-in ensemble: what it is asked, what comes back, in which order."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from client.wire import Piece
from front import responses
from front.open_responses.asks import ResponsesAsk
from front.open_responses.turns import turns_of
from python_backends.text.door.turns import Call, Turn
from tests.pure.front.conftest import ANSWER
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, events, sent
from tests.support.text.templates import TOOLS, template

PATH = "/v1/responses"
BODY: dict[str, Any] = {"model": "toy", "input": "Convert"}
EVENT = TypeAdapter(ResponseStreamEvent)
USAGE = {
    **{"input_tokens": 14, "output_tokens": 5, "total_tokens": 19},
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


def turns(*items: dict[str, Any], instructions: str | None = None) -> list[Turn]:
    return turns_of(ResponsesAsk(input=list(items), instructions=instructions))


# --- answers


def test_a_response_fits_openais_types_strictly(front: Front, sdk: openai.OpenAI) -> None:
    answer = ask(front, PATH, BODY)[2]
    Response.model_validate(answer, strict=True)
    assert (answer["status"], answer["incomplete_details"], answer["usage"]) == ("completed", None, USAGE)
    assert sdk.responses.create(model="toy", input="Convert").output_text == "readAll\u2028Lines"


def test_a_stream_has_its_events_in_order_and_with_numbers(front: Front, sdk: openai.OpenAI) -> None:
    came = events(front, PATH, {**BODY, "instructions": "be short", "max_output_tokens": 9})
    assert [name.removeprefix("response.") for name, _ in came] == [
        *("created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * 3),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    for _, data in came:
        EVENT.validate_python(data, strict=True)
    assert [data["sequence_number"] for _, data in came] == list(range(len(came)))
    whole = came[-1][1]["response"]
    assert {data["item_id"] for _, data in came if "item_id" in data} == {whole["output"][0]["id"]}
    assert {data["response"]["id"] for _, data in came if "response" in data} == {whole["id"]}
    assert "".join(data["delta"] for _, data in came if "delta" in data) == "readAll\u2028Lines"
    assert came[-2][1]["item"] == whole["output"][0]
    assert (whole["usage"], whole["instructions"], whole["max_output_tokens"]) == (USAGE, "be short", 9)
    with sdk.responses.stream(model="toy", input="Convert") as stream:
        list(stream)
        assert stream.get_final_response().output_text == "readAll\u2028Lines"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_reached_its_limit_is_incomplete(
    front: Front, ensemble: Ensemble, stream: bool
) -> None:
    ensemble.pieces = (Piece("read", "length", num_input_tokens=14, num_output_tokens=1),)
    if stream:
        name, data = events(front, PATH, BODY)[-1]
        EVENT.validate_python(data, strict=True)
        assert name == "response.incomplete"
    answer = data["response"] if stream else ask(front, PATH, BODY)[2]
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete"


def test_log_probabilities_come_where_they_are_included(front: Front, ensemble: Ensemble) -> None:
    token = front.model.checkpoint.tokenizer.encode("a", add_special_tokens=False).ids[0]
    scores: Any = {"top_ids": ((token, 7),), "top_log_probs": ((-0.5, -1.0),)}
    ensemble.pieces = (Piece("a", output_ids=(token,), output_log_probs=(-0.5,), **scores), ANSWER[-1])
    body = {**BODY, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = ask(front, PATH, body)[2]
    Response.model_validate(answer, strict=True)
    (entry,) = answer["output"][0]["content"][0]["logprobs"]
    assert (entry["token"], entry["bytes"], entry["logprob"], len(entry["top_logprobs"])) == (
        "a",
        [97],
        -0.5,
        2,
    )
    deltas = [data for name, data in events(front, PATH, body) if name == "response.output_text.delta"]
    assert deltas[0]["logprobs"][0]["logprob"] == -0.5
    EVENT.validate_python(deltas[0], strict=True)


def test_a_silent_stream_says_that_it_is_in_progress(
    front: Front, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "SIGN_EVERY_S", 0.1)
    ensemble.pause_s = 0.35
    came = events(front, PATH, BODY)
    names = [name for name, _ in came]
    assert names[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert names.count("response.created") == 1
    assert [data["sequence_number"] for _, data in came] == list(range(len(came)))


def test_a_failure_within_a_stream_ends_it_with_a_failed_response(front: Front, ensemble: Ensemble) -> None:
    ensemble.pieces = ANSWER[:1]  # and no end
    name, data = events(front, PATH, BODY)[-1]
    EVENT.validate_python(data, strict=True)
    assert (name, data["response"]["error"]["code"]) == ("response.failed", "server_error")


def test_a_prompt_that_does_not_fit_is_an_event_where_the_answer_is_streamed(
    front: Front, ensemble: Ensemble
) -> None:
    """Codex shortens its conversation only then."""
    ensemble.error = "messages = 90 tokens: must be at most 63 [context_length_exceeded]"
    came = events(front, PATH, BODY)
    assert [name for name, _ in came] == ["response.created", "response.in_progress", "response.failed"]
    for _, data in came[:2]:  # OpenAI sends this code, and its types don't have it
        EVENT.validate_python(data, strict=True)
    assert [data["sequence_number"] for _, data in came] == [0, 1, 2]
    failed = came[-1][1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "context_length_exceeded")
    assert sent(front, PATH, {**BODY, "stream": True})[0] == 200
    status, _, answer = ask(front, PATH, BODY)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    ensemble.error = "temperature = 200: must be at most 100 [invalid_value]"
    assert sent(front, PATH, {**BODY, "stream": True})[0] == 400


# --- what the ensemble is asked


def test_fields_arrive_as_the_ensemble_calls_them(front: Front, ensemble: Ensemble) -> None:
    body = {**BODY, "instructions": "be short", "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.25}
    status, _, answer = ask(
        front,
        PATH,
        {
            **body,
            **{"store": True, "prompt_cache_key": "x", "service_tier": "auto", "parallel_tool_calls": True},
            **{
                "reasoning": {"effort": "high"},
                "text": {"verbosity": "low"},
                "x_new": 1,
                "tool_choice": "auto",
            },
            "tools": [{"type": "web_search"}, {"type": "function", "name": "f"}, {"type": "new"}],
        },
    )
    (asked,) = ensemble.asked
    assert (status, answer["store"], answer["reasoning"]["effort"]) == (200, False, "high")
    Response.model_validate(answer, strict=True)
    assert json.loads(asked["messages"]) == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "Convert"},
    ]
    assert (asked["max_tokens"], asked["temperature"], asked["top_p"]) == (9, 0.5, 0.25)


def test_functions_go_to_the_template_and_other_tools_are_skipped(front: Front, ensemble: Ensemble) -> None:
    front.model.__dict__["template"] = template(TOOLS)
    schema = {"type": "object", "properties": {}}
    inner = [{"type": "function", "name": "g"}, {"type": "custom", "name": "patch", "format": {}}]
    tools = [
        {"type": "function", "name": "f", "description": "d", "parameters": schema, "strict": True},
        {"type": "namespace", "name": "all", "tools": inner},
        {"type": "tool_search"},
    ]
    added = {"type": "additional_tools", "tools": [{"type": "function", "name": "late"}]}
    conversation = [{"role": "user", "content": "x"}, added]
    answer = ask(front, PATH, {**BODY, "input": conversation, "tools": tools})[2]
    Response.model_validate(answer, strict=True)
    asked = [tool["function"] for tool in json.loads(ensemble.asked[0]["tools"])]
    assert [tool["name"] for tool in asked] == ["f", "g", "patch", "late"]
    assert asked[0] == {"name": "f", "description": "d", "parameters": schema}
    assert [tool["name"] for tool in answer["tools"]] == ["f", "g", "patch", "late"]


def test_without_a_limit_the_answer_may_fill_the_context_and_a_larger_one_is_cut(
    front: Front, ensemble: Ensemble
) -> None:
    ask(front, PATH, BODY)
    ensemble.errors = ["max_tokens = 32000: must be at most 12, because … [invalid_value]"]
    assert ask(front, PATH, {**BODY, "max_output_tokens": 32_000})[0] == 200
    assert [asked["max_tokens"] for asked in ensemble.asked] == [-1, 32_000, -1]


def test_items_become_turns() -> None:
    assert turns(
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"path": "."}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": "x.py"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "ok"}],
        },
        {"type": "function_call", "call_id": "c3", "name": "bad", "arguments": "{"},
        {"type": "web_search_call", "id": "x"},
        {"type": "compaction", "encrypted_content": "…"},
        {"role": "developer", "content": "late"},
        instructions="first",
    ) == [
        Turn("system", "first\n\nrules"),
        Turn("user", "a\nb"),
        Turn(
            "assistant",
            "I look.",
            (Call("c1", "ls", {"path": "."}), Call("c2", "patch", {"input": "*** Begin"})),
            thought="hm",
        ),
        Turn("tool", "x.py", call_id="c1"),
        Turn("tool", "ok", call_id="c2"),
        Turn("assistant", calls=(Call("c3", "bad", "{"),)),
        Turn("system", "late"),
    ]


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def test_thoughts_of_a_turn_stay_together() -> None:
    said = {"role": "assistant", "content": "I look."}
    call = {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"}
    calls = (Call("c1", "ls", {}),)
    assert turns(thought("a"), said, thought("b"), thought("c"), call) == [
        Turn("assistant", "I look.", calls, thought="a\nb\nc")
    ]
    assert turns(thought("a"), thought("b"), thought(""), call) == [
        Turn("assistant", "", calls, thought="a\nb")
    ]


def test_a_thought_of_a_turn_that_was_broken_off_goes_to_no_later_one() -> None:
    asked, said = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
    assert turns(asked, thought("a"), asked, said) == [
        *(Turn("user", "x"), Turn("user", "x")),
        Turn("assistant", "y"),
    ]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        (
            {"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "a"}]},
            "input[1].type",
        ),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ],
)
def test_a_bad_field_is_named(front: Front, change: dict[str, Any], param: str) -> None:
    status, _, answer = ask(front, PATH, {**BODY, **change})
    assert (status, answer["error"]["param"]) == (400, param)
    assert param in answer["error"]["message"]
