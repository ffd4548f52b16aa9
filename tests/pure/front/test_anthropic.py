"""/v1/messages over a stand-in ensemble: what it is asked, what comes back, in which order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client.wire import Piece
from front import responses
from front.anthropic.asks import CountAsk, Message
from front.anthropic.blocks import Blocks
from front.anthropic.turns import turns_of
from front.keys import read_keys
from front.parts.events import Arguments, Begun, Ended
from python_backends.text.door.turns import Call, Turn
from tests.pure.front.conftest import ANSWER, KEY, MESSAGES
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, events, sent
from tests.support.text.templates import TOOLS, template

PATH = "/v1/messages"
BODY: dict[str, Any] = {"model": "toy", "max_tokens": 9, "messages": MESSAGES}
USAGE = {"input_tokens": 6, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 0}
HEADER = "x-anthropic-billing-header: cc_version=2.1.36.1; cc_entrypoint=cli; cch={};"


def turns(*messages: Any, system: Any = None) -> list[Turn]:
    made = [Message(role, content) for role, content in messages]
    return turns_of(CountAsk(messages=made, system=system))


# --- answers


def test_a_message_has_its_text_and_counts_cached_tokens_apart(front: Front) -> None:
    status, head, answer = ask(front, PATH, BODY)
    assert (status, head["request-id"]) == (200, head["x-request-id"])
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        **{"type": "message", "role": "assistant", "model": "toy"},
        "content": [{"type": "text", "text": "readAll\u2028Lines", "citations": None}],
        **{"stop_reason": "end_turn", "stop_sequence": None, "usage": {**USAGE, "output_tokens": 5}},
    }


def test_a_stream_has_its_events_in_order(front: Front) -> None:
    came = events(front, PATH, BODY)
    assert [name for name, _ in came] == [
        *("message_start", "content_block_start", *["content_block_delta"] * 3),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    start, block, *deltas = [data for _, data in came[:5]]
    assert start["message"]["usage"] == {**USAGE, "output_tokens": 0}
    assert (start["message"]["content"], start["message"]["stop_reason"]) == ([], None)
    assert block["content_block"] == {"type": "text", "text": "", "citations": None}
    assert "".join(each["delta"]["text"] for each in deltas) == "readAll\u2028Lines"
    assert came[6][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert came[6][1]["usage"] == {**USAGE, "output_tokens": 5}


def test_an_answer_that_reached_max_tokens_says_so(front: Front, ensemble: Ensemble) -> None:
    ensemble.pieces = (Piece("read", "length", num_output_tokens=1),)
    assert ask(front, PATH, BODY)[2]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("behind", "reason"), [("b", "stop_sequence"), ("", "end_turn")])
@pytest.mark.parametrize("has_hidden", [False, True])
def test_the_stop_word_that_ended_an_answer_is_named(
    front: Front, ensemble: Ensemble, stream: bool, behind: str, reason: str, has_hidden: bool
) -> None:
    """Also behind a special token, which the text does not show."""
    tokenizer = front.model.checkpoint.tokenizer
    ids = tokenizer.encode("a" + behind, add_special_tokens=False).ids
    ids += [] if behind else [min(front.model.end_ids)]
    hidden = [tokenizer.token_to_id(min(front.model.checkpoint.special_tokens))] * has_hidden
    ensemble.pieces = (
        Piece("a", output_ids=tuple(hidden + ids[:1])),
        Piece("", "stop", output_ids=tuple(ids[1:])),
    )
    body = {**BODY, "stop_sequences": ["xy", "b"]}
    end = events(front, PATH, body)[-2][1]["delta"] if stream else ask(front, PATH, body)[2]
    assert (end["stop_reason"], end["stop_sequence"]) == (reason, behind or None)
    assert ensemble.asked[0]["stop_words"] == ("xy", "b")


def test_so_it_is_behind_bytes_that_are_no_character(front: Front, ensemble: Ensemble) -> None:
    tokenizer = front.model.checkpoint.tokenizer
    byte, *others = (tokenizer.token_to_id(text) for text in ("ð", "a", "b"))  # ð: the byte 0xF0
    ensemble.pieces = (Piece("\ufffda", "stop", output_ids=(byte, *others)),)
    answer = ask(front, PATH, {**BODY, "stop_sequences": ["b"]})[2]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "b")


def test_more_tokens_than_the_context_has_are_cut(front: Front, ensemble: Ensemble) -> None:
    ensemble.errors = ["max_tokens = 32000: must be at most 12, because … [invalid_value]"]
    assert ask(front, PATH, {**BODY, "max_tokens": 32_000})[0] == 200
    assert [asked["max_tokens"] for asked in ensemble.asked] == [32_000, -1]


@pytest.mark.parametrize("reason", ["length", "stop"])
@pytest.mark.parametrize("text", ["", "read"])
def test_with_no_tokens_the_prompt_is_computed_and_the_answer_is_empty(
    tool_front: Front, ensemble: Ensemble, text: str, reason: str
) -> None:
    """The one token that the ensemble writes is left out, also where it ends the answer."""
    counts = {"num_input_tokens": 14, "num_cached_tokens": 8, "num_output_tokens": 1}
    ensemble.pieces = (Piece(text, reason, **counts),)
    body = {**BODY, "model": None, "max_tokens": 0, "stop_sequences": ["read"]}
    answer = ask(tool_front, PATH, body)[2]
    assert (answer["content"], answer["stop_reason"], answer["stop_sequence"]) == ([], "max_tokens", None)
    assert answer["usage"] == {**USAGE, "output_tokens": 0}
    came = events(tool_front, PATH, body)
    assert [name for name, _ in came] == ["message_start", "message_delta", "message_stop"]
    assert came[1][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert came[1][1]["usage"] == {**USAGE, "output_tokens": 0}
    assert [asked["max_tokens"] for asked in ensemble.asked] == [1, 1]


def test_a_silent_stream_is_pinged(front: Front, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "SIGN_EVERY_S", 0.1)
    ensemble.pause_s = 0.35
    came = events(front, PATH, BODY)
    assert came[0] == ("ping", {"type": "ping"})
    assert came[-1][0] == "message_stop"


# --- what the ensemble is asked


def test_fields_arrive_as_the_ensemble_calls_them(front: Front, ensemble: Ensemble) -> None:
    body = {**BODY, "temperature": 0.5, "top_p": 0.25, "top_k": 3, "system": "be short"}
    ask(front, f"{PATH}?beta=true", {**body, "metadata": {"user_id": "x"}, "context_management": {}, "x": 1})
    (asked,) = ensemble.asked
    assert json.loads(asked["messages"]) == [{"role": "system", "content": "be short"}, *MESSAGES]
    assert (asked["max_tokens"], asked["temperature"], asked["top_p"], asked["top_k"]) == (9, 0.5, 0.25, 3)


def test_blocks_become_turns() -> None:
    assert turns(
        (
            "user",
            [
                {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "b"},
            ],
        ),
        (
            "assistant",
            [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "…"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "."}},
                {"type": "tool_use", "id": "t2", "name": "pwd", "input": {}},
            ],
        ),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x.py"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "denied", "is_error": True},
                {"type": "text", "text": "go on"},
                {"type": "document", "source": {"type": "text", "data": "note"}},
                {"type": "new_in_2027"},
            ],
        ),
        ("system", "late"),
        ("ctx", "context"),
        system=[{"type": "text", "text": "first"}, {"type": "text", "text": "second"}],
    ) == [
        Turn("system", "first\nsecond"),
        Turn("user", "a\nb"),
        Turn("assistant", "I look.", (Call("t1", "ls", {"path": "."}), Call("t2", "pwd", {})), thought="hm"),
        Turn("tool", "x.py", call_id="t1"),
        Turn("tool", "Error: denied", call_id="t2"),
        Turn("user", "go on\nnote"),
        Turn("system", "late"),
        Turn("user", "context"),
    ]


@pytest.mark.parametrize("join", ["", "\n", "\n\n"])
def test_the_header_that_changes_with_each_request_is_not_in_the_prompt(join: str) -> None:
    for cch in ("00a1b", "ffffff"):
        one = turns(("user", "x"), system=f"{HEADER.format(cch)}{join}You are a helper; a = b;")
        assert one[0] == Turn("system", "You are a helper; a = b;")
        blocks = [{"type": "text", "text": HEADER.format(cch)}, {"type": "text", "text": "You are"}]
        assert turns(("user", "x"), system=blocks)[0] == Turn("system", "You are")
    assert turns(("user", HEADER.format("1"))) == [Turn("user", HEADER.format("1"))], "the user's own words"
    assert turns(("user", "x"), system=HEADER.format("1")) == [Turn("user", "x")]


def test_white_space_in_the_system_costs_no_time() -> None:
    """Read by a search, it would take half an hour."""
    spaces = "a" + " " * 1_000_000
    assert turns(("user", "x"), system=spaces)[0] == Turn("system", spaces)


def test_an_escaped_half_of_a_pair_in_arguments_is_replaced() -> None:
    blocks = Blocks(omits_thoughts=False)
    blocks.add([Begun("now"), Arguments('{"a": "\\ud83d"}'), Ended()])
    assert json.loads(msgspec.json.encode(blocks.content))[0]["input"] == {"a": "?"}


def test_tools_thinking_and_an_answer_that_is_begun_go_to_the_template(
    front: Front, ensemble: Ensemble
) -> None:
    front.model.__dict__["template"] = template(TOOLS)
    schema = {"properties": {"path": {"type": "string"}}}
    tools = [
        {"name": "ls", "description": "lists", "input_schema": schema, "cache_control": {}},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    messages = [*MESSAGES, {"role": "assistant", "content": "def read"}]
    body = {**BODY, "messages": messages, "tools": tools, "thinking": {"type": "disabled"}}
    ask(front, PATH, {**body, "output_config": {"effort": "low"}})
    (asked,) = ensemble.asked
    function = {"name": "ls", "description": "lists", "parameters": {"type": "object", **schema}}
    assert json.loads(asked["tools"]) == [{"type": "function", "function": function}]
    named = {"enable_thinking": False, "reasoning_effort": "low"}
    assert json.loads(asked["chat_template_kwargs"]) == named
    assert asked["continue_final_message"] is True


def test_a_last_message_of_white_space_is_not_continued(front: Front, ensemble: Ensemble) -> None:
    ask(front, PATH, {**BODY, "messages": [*MESSAGES, {"role": "assistant", "content": " \n"}]})
    assert "continue_final_message" not in ensemble.asked[0]


def test_tokens_are_counted_as_the_prompt_of_the_answer_has_them(front: Front) -> None:
    body = {"model": "toy", "messages": MESSAGES, "system": HEADER.format("1") + "be short"}
    status, _, counted = ask(front, f"{PATH}/count_tokens?beta=true", body)
    messages = [{"role": "system", "content": "be short"}, *MESSAGES]
    expected = ask(front, "/tokenize", {"messages": messages})[2]["count"]
    assert (status, counted) == (200, {"input_tokens": expected})


def test_tokens_beyond_the_context_are_counted(front: Front) -> None:
    body = {"messages": [{"role": "user", "content": "a\n" * 3000}]}
    status, _, counted = ask(front, f"{PATH}/count_tokens", body)
    assert (status, counted) == (200, {"input_tokens": ask(front, "/tokenize", body)[2]["count"]})
    assert counted["input_tokens"] > front.model.max_tokens
    body = {"messages": [{"role": "user", "content": "a" * 65_537}]}  # 32 bytes a token of the context
    status, _, refused = ask(front, f"{PATH}/count_tokens", body)
    assert (status, refused["error"]["type"]) == (400, "invalid_request_error")
    assert refused["error"]["message"].startswith("prompt is too long: messages = 65537 bytes of content")


# --- errors


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"messages": []}, "messages: must have at least one message"),
        ({"messages": [{"role": "user", "content": [{"type": "new"}]}]}, "messages: must have a text"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role = 'king'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0].type = 'image'",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"max_tokens": -1}, "max_tokens = -1"),
        ({"max_tokens": None}, "max_tokens"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: needs tools"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type = 'some'"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
def test_a_bad_field_is_named_in_anthropics_shape(front: Front, change: dict[str, Any], said: str) -> None:
    status, _, answer = ask(front, PATH, {**BODY, **change})
    assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
    assert said in answer["error"]["message"]


@pytest.mark.parametrize(
    ("said", "status", "kind"),
    [
        ("messages = 90 tokens: must be at most 63 [context_length_exceeded]", 400, "invalid_request_error"),
        ("too many open requests: 2 are open [queue_full]", 429, "rate_limit_error"),
        ("the server is shutting down [shutting_down]", 503, "overloaded_error"),
        ("the instance was lost [failed]", 500, "api_error"),
    ],
)
def test_errors_of_the_ensemble_have_anthropics_types(
    front: Front, ensemble: Ensemble, said: str, status: int, kind: str
) -> None:
    ensemble.error = said
    for stream in (False, True):
        came, head, answer = ask(front, PATH, {**BODY, "stream": stream})
        assert (came, answer["error"]["type"]) == (status, kind)
        assert ("retry-after" in head) == (status in (429, 503))
        assert answer["error"]["message"].startswith("prompt is too long: ") == ("context" in said)


def test_a_prompt_that_is_too_long_has_both_counts_as_claude_code_reads_them(
    front: Front, ensemble: Ensemble
) -> None:
    counts = re.compile(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", re.IGNORECASE)  # 2.1.197
    end = "This model's maximum context length is 64 tokens. [context_length_exceeded]"
    ensemble.errors = [
        f"messages = 90 tokens: must be at most 63. {end}",
        f"messages = more than 63 tokens: must be at most 63. {end}",
        f"messages = 3000 bytes of content: must be at most 2048 (32 a token of this model's context). {end}",
    ]
    said = [ask(front, PATH, BODY)[2]["error"]["message"] for _ in range(3)]
    assert said[0].startswith("prompt is too long: 90 tokens > 63 maximum; messages = 90 tokens")
    found = counts.search(said[0])
    assert found
    assert found.groups() == ("90", "63")
    assert said[1].startswith("prompt is too long: messages = more than 63 tokens")
    assert said[2].startswith("prompt is too long: messages = 3000 bytes")


def test_a_refusal_of_the_ensemble_has_the_name_of_the_clients_field(
    front: Front, ensemble: Ensemble
) -> None:
    ensemble.error = "stop_words[0] = 300 bytes: must have 1 to 256 [invalid_value]"
    answer = ask(front, PATH, {**BODY, "stop_sequences": ["a" * 300]})[2]
    assert answer["error"]["message"] == "stop_sequences[0] = 300 bytes: must have 1 to 256"


def test_an_error_in_the_middle_of_a_stream_is_an_event_and_its_last(
    front: Front, ensemble: Ensemble
) -> None:
    ensemble.pieces = ANSWER[:1]  # and no end
    name, data = events(front, PATH, BODY)[-1]
    assert (name, data["error"]["type"]) == ("error", "api_error")


def test_a_body_that_is_no_json_and_an_unknown_model_have_the_same_shape(front: Front) -> None:
    assert ask(front, PATH, b"{")[2]["type"] == "error"
    status, _, answer = ask(front, PATH, {**BODY, "model": "claude-9"})
    assert (status, answer["error"]["type"]) == (404, "not_found_error")


def test_a_key_may_come_in_x_api_key(ensemble: Ensemble, model: Path, tmp_path: Path) -> None:
    front = Front(ensemble, model, tmp_path, read_keys(None, KEY))
    try:
        assert ask(front, PATH, BODY, x_api_key=KEY)[0] == 200
        assert ask(front, PATH, BODY, authorization=f"Bearer {KEY}")[0] == 200
        for headers in ({}, {"x_api_key": "other"}):
            status, _, answer = ask(front, PATH, BODY, **headers)
            assert (status, answer["error"]["type"]) == (401, "authentication_error")
    finally:
        front.close()


def test_the_root_answers(front: Front) -> None:
    assert sent(front, "/", method="HEAD")[0] == 200
    assert sent(front, PATH, BODY)[0] == 200
