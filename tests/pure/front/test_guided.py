"""Answers that must be calls, or texts of a format: what the ensemble is asked, and what comes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from front.errors import ProblemError
from front.guided.choice import AUTO, REQUIRED, Choice, of_anthropic, of_openai
from front.guided.wanted import wanted
from front.guided.writing import call_form, may_call, must_call, text_of, text_or_calls
from front.parts.events import Arguments, Begun, Ended
from front.parts.formats import TABLE, Format
from front.parts.machine import Expected, Machine, Tokens
from front.tools import strict_of
from python_backends.guides.errors import GuideError
from python_backends.text.door.thoughts import THINK
from tests.pure.front.conftest import MESSAGES
from tests.support.answers import joined
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask
from tests.support.guided import TOKENS, allowed, drawn, matcher
from tests.support.tool_model import ANSWER, FUNCTION, NOW, Answers

TOOLS: list[Any] = [{"type": "function", "function": each} for each in (FUNCTION, NOW)]
HERMES = next(each for each in TABLE if each.family == "Hermes")
THINKING = replace(HERMES, thoughts=(THINK,))
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
CALL = '{"name": "weather", "arguments": {"city": "Łódź"}}'


def document(asked: dict[str, Any]) -> Any:
    assert asked["guided_decoding_guide_type"] == "structural_tag"
    return json.loads(asked["guided_decoding_guide"])["format"]


# --- the guides, followed


@pytest.mark.parametrize(
    ("form", "is_visible"), [(HERMES, True), (HERMES, False), (None, True)], ids=["marks", "hidden", "none"]
)
@pytest.mark.parametrize("calls_one", [True, False])
def test_what_must_be_a_call_is_one_whatever_is_drawn(
    form: Format | None, is_visible: bool, calls_one: bool
) -> None:
    written = call_form(form, is_visible)
    guide = must_call(written, TOOLS[:1], calls_one, "", "tool_choice")
    expected = Expected({"weather": {}}, int(calls_one))
    for seed in range(2):
        text, is_whole = drawn(matcher(guide.kind, guide.guide), seed)
        events = joined(Machine(written, Tokens(), expected).feed(text.decode("utf-8", "replace"), True))
        begun, arguments, *_ = events
        assert begun == Begun("weather")
        if is_whole:
            assert isinstance(arguments, Arguments)
            assert isinstance(json.loads(arguments.text)["city"], str)
            assert Ended() in events
            assert events.count(Ended()) == 1 or not calls_one


def test_a_thought_may_come_before_a_call_and_before_a_text() -> None:
    form = call_form(THINKING, True)
    call = must_call(form, TOOLS, True, "", "tool_choice")
    for begun in (b"<think>what?</think>\n\n<tool_call>\n", b"<tool_call>\n"):
        found = matcher(call.kind, call.guide, begun)
        assert {TOKENS[token] for token in allowed(found)} <= {b"{", b'{"'}
    found = wanted({"type": "json_schema", "schema": SCHEMA}, "text.format")
    assert found is not None
    text = text_of(form, found, "</think>")
    assert b"x" in [TOKENS[token] for token in allowed(matcher(text.kind, text.guide))]
    behind = matcher(text.kind, text.guide, b"so </think>\n")
    assert {b"{"} <= {TOKENS[token] for token in allowed(behind)}
    assert b"x" not in [TOKENS[token] for token in allowed(behind)]


def test_a_text_of_a_format_or_calls_where_both_may_be() -> None:
    found = wanted({"type": "json_schema", "schema": SCHEMA}, "text.format")
    assert found is not None
    guide = text_or_calls(call_form(HERMES, True), TOOLS, found, False, "")
    for begun in (b"<tool_call>\n" + CALL.encode()[:11], b'{"a": '):
        assert allowed(matcher(guide.kind, guide.guide, begun))


def test_a_call_that_may_be_follows_the_schema_of_a_strict_tool() -> None:
    guide = may_call(call_form(HERMES, True), TOOLS, {"weather"}, False, "tools")
    begun = b'Well. <tool_call>\n{"name": "weather", "arguments": {"city": '
    found = [TOKENS[token] for token in allowed(matcher(guide.kind, guide.guide, begun))]
    assert b'"' in found
    assert b"1" not in found
    assert len(allowed(matcher(guide.kind, guide.guide, b"any text "))) > 150


# --- what is asked


def test_required_named_and_any_are_asked_for_by_a_guide(tool_front: Front, ensemble: Ensemble) -> None:
    chat = {"messages": MESSAGES, "tools": TOOLS}
    flat = [{"type": "function", **each} for each in (FUNCTION, NOW)]
    schemas = [{"name": each["name"], "input_schema": each["parameters"]} for each in (FUNCTION, NOW)]
    message = {"messages": MESSAGES, "max_tokens": 9, "tools": schemas}
    for path, body, names in (
        ("/v1/chat/completions", {**chat, "tool_choice": "required"}, ["weather", "now"]),
        (
            "/v1/chat/completions",
            {**chat, "tool_choice": {"type": "function", "function": {"name": "now"}}},
            ["now"],
        ),
        ("/v1/responses", {"input": "x", "tools": flat, "tool_choice": "required"}, ["weather", "now"]),
        (
            "/v1/responses",
            {"input": "x", "tools": flat, "tool_choice": {"type": "function", "name": "weather"}},
            ["weather"],
        ),
        ("/v1/messages", {**message, "tool_choice": {"type": "any"}}, ["weather", "now"]),
        ("/v1/messages", {**message, "tool_choice": {"type": "tool", "name": "now"}}, ["now"]),
    ):
        assert ask(tool_front, path, body)[0] == 200
        asked = ensemble.asked[-1]
        _thought_first, calls = document(asked)["elements"]
        begins = [tag["begin"] for tag in calls["tags"]]
        assert begins == [f'<tool_call>\n{{"name": "{name}", "arguments": ' for name in names]
        assert len(json.loads(asked["tools"])) == 2  # the prompt is the same


def test_a_forced_call_comes_as_one_where_the_template_knows_no_tools(
    front: Front, ensemble: Ensemble, model: Path
) -> None:
    ensemble.pieces = Answers(model).pieces(CALL, (3,))
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required"}
    (choice,) = ask(front, "/v1/chat/completions", body)[2]["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Łódź"}'}
    assert choice["finish_reason"] == "tool_calls"


def test_formats_of_a_text_become_guides(front: Front, ensemble: Ensemble) -> None:
    chat, schema = {"messages": MESSAGES}, {"type": "json_schema", "json_schema": SCHEMA}
    inner = {"name": "x", "schema": SCHEMA, "strict": True}
    flat = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    message = {"messages": MESSAGES, "max_tokens": 9}
    for path, body, wanted_form in (
        ("/v1/chat/completions", {**chat, "response_format": {**schema, "json_schema": inner}}, schema),
        (
            "/v1/chat/completions",
            {**chat, "response_format": {"type": "json_object"}},
            {"type": "json_schema", "json_schema": {"type": "object"}},
        ),
        ("/v1/responses", {"input": "x", "text": {"format": {**flat, "strict": True}}}, schema),
        ("/v1/messages", {**message, "output_config": {"format": flat}}, schema),
    ):
        assert ask(front, path, body)[0] == 200
        assert document(ensemble.asked[-1]) == wanted_form
    assert ask(front, "/v1/chat/completions", {**chat, "response_format": {"type": "text"}})[0] == 200
    assert "guided_decoding_guide" not in ensemble.asked[-1]


def test_a_tool_within_a_namespace_may_be_strict() -> None:
    inner = {"type": "function", "name": "f", "strict": True}
    assert strict_of([{"type": "namespace", "name": "n", "tools": [inner, 5]}]) == {"f"}


def test_a_strict_tool_is_guarded_where_calls_are_free(tool_front: Front, ensemble: Ensemble) -> None:
    strict = [{"type": "function", "function": {**FUNCTION, "strict": True}}, TOOLS[1]]
    ask(tool_front, "/v1/chat/completions", {"messages": MESSAGES, "tools": strict})
    tags = document(ensemble.asked[-1])["tags"]
    assert [tag["content"]["json_schema"] for tag in tags] == [FUNCTION["parameters"], {"type": "object"}]
    ask(tool_front, "/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS})
    assert "guided_decoding_guide" not in ensemble.asked[-1]


def test_a_tool_that_is_not_allowed_is_not_called(
    tool_front: Front, ensemble: Ensemble, tool_model: Path
) -> None:
    """Also where no guide keeps the model from it; here the answer is one that no guide had."""
    chosen = {"type": "function", "function": {"name": "now"}}
    allowed_tools: dict[str, Any] = {"mode": "auto", "tools": [chosen]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed_tools}
    ensemble.pieces = Answers(tool_model).pieces(ANSWER, (3,))
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice}
    message = ask(tool_front, "/v1/chat/completions", body)[2]["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["now"]
    assert '"weather"' in message["content"]
    asked = ensemble.asked[-1]
    assert [tag["begin"] for tag in document(asked)["tags"]] == ['<tool_call>\n{"name": "now", "arguments": ']
    assert len(json.loads(asked["tools"])) == 2  # the prompt is the same
    allowed_tools["tools"] = []
    message = ask(tool_front, "/v1/chat/completions", body)[2]["choices"][0]["message"]
    assert "tool_calls" not in message
    assert "guided_decoding_guide" not in ensemble.asked[-1]


def test_of_a_tool_that_is_not_strict_what_a_guide_can_follow_is_followed(
    tool_front: Front, ensemble: Ensemble
) -> None:
    parameters = {
        "properties": {
            "paths": {"type": "array", "items": {"type": "string", "format": "path"}, "uniqueItems": True},
            "mail": {"type": "string", "pattern": r"^(?!\.)a@b$"},
            "other": {"$ref": "https://example.com/a"},
        },
        "required": ["paths"],
        "not": {"required": ["mail"]},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body = {"messages": MESSAGES, "tools": [tool], "tool_choice": "required"}
    assert ask(tool_front, "/v1/chat/completions", body)[0] == 200
    begun = b'<tool_call>\n{"name": "f", "arguments": '
    guide = ensemble.asked[-1]["guided_decoding_guide"]
    found = matcher("structural_tag", guide, begun)
    assert {TOKENS[token] for token in allowed(found)} <= {b"{", b'{"'}
    assert found.take(list(b'{"paths": ["a"], "mail": "x", "other": 1}'))
    strict = {**tool, "function": {**tool["function"], "strict": True}}
    ask(tool_front, "/v1/chat/completions", {**body, "tools": [strict]})
    with pytest.raises(GuideError, match="example"):
        matcher("structural_tag", ensemble.asked[-1]["guided_decoding_guide"])


@pytest.mark.parametrize("says", [{}, {"strict": False}, {"strict": None}])
def test_of_a_format_that_is_not_strict_what_a_guide_can_follow_is_followed(
    front: Front, ensemble: Ensemble, says: dict[str, Any]
) -> None:
    items = {"type": "string", "pattern": r"^(?!\.)a$", "maxLength": 3}
    inner: Any = {"name": "x", "schema": {"type": "array", "items": items, "uniqueItems": True}, **says}
    form: Any = {"type": "json_schema", "json_schema": inner}
    chat: Any = {"messages": MESSAGES, "response_format": form}
    response: Any = {"input": "x", "text": {"format": {"type": "json_schema", **inner}}}
    for path, body in (("/v1/chat/completions", chat), ("/v1/responses", response)):
        assert ask(front, path, body)[0] == 200
        guide = ensemble.asked[-1]["guided_decoding_guide"]
        assert {TOKENS[token] for token in allowed(matcher("structural_tag", guide))} == {b"["}
        assert matcher("structural_tag", guide).take(list(b'["b", "b"]'))
        assert TOKENS.index(b"b") not in allowed(matcher("structural_tag", guide, b'["bbb'))


def test_a_strict_format_and_anthropics_are_followed_whole_or_refused(
    front: Front, ensemble: Ensemble
) -> None:
    schema = {"type": "array", "uniqueItems": True}
    inner = {"name": "x", "schema": schema, "strict": True}
    chat: Any = {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": inner}}
    flat = {"type": "json_schema", "schema": schema}
    message: Any = {"messages": MESSAGES, "max_tokens": 9, "output_config": {"format": flat}}
    for path, body in (("/v1/chat/completions", chat), ("/v1/messages", message)):
        ask(front, path, body)
        with pytest.raises(GuideError, match="uniqueItems"):
            matcher("structural_tag", ensemble.asked[-1]["guided_decoding_guide"])


def test_what_the_ensemble_says_of_a_guide_names_the_clients_field(front: Front, ensemble: Ensemble) -> None:
    ensemble.error = "guided_decoding_guide (structural_tag): format.json_schema: no [invalid_value]"
    body = {"messages": MESSAGES, "response_format": {"type": "json_object"}}
    status, _, answer = ask(front, "/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "response_format")
    assert answer["error"]["message"].startswith("response_format: ")
    ensemble.error = "guided_decoding_guide (structural_tag): could not be compiled [queue_full]"
    status, _, answer = ask(front, "/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (429, "response_format")
    ensemble.error = "guided_decoding_guide_type: this engine can't follow it [invalid_value]"
    body = {"input": "x", "text": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    status, _, answer = ask(front, "/v1/responses", body)
    assert (status, answer["error"]["param"]) == (400, "text.format")


# --- choices


def test_choices_of_both_interfaces_are_read() -> None:
    allowed_tools = {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert of_openai({"type": "allowed_tools", "allowed_tools": allowed_tools}) == Choice(
        REQUIRED, frozenset({"f"})
    )
    flat = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "p"}]}
    assert of_openai(flat) == Choice(AUTO, frozenset({"p"}))
    assert of_anthropic({"type": "any"}) == Choice(REQUIRED)
    assert of_anthropic(None) == of_openai(None) == Choice()


@pytest.mark.parametrize(
    "given", ["always", {}, {"type": "function"}, {"type": "allowed_tools", "tools": []}]
)
def test_other_choices_are_refused(given: Any) -> None:
    with pytest.raises(ProblemError, match="tool_choice"):
        of_openai(given)


def test_a_tool_that_there_is_not_can_not_be_chosen() -> None:
    with pytest.raises(ProblemError, match="no tool 'f'"):
        Choice(REQUIRED, frozenset({"f"})).among(TOOLS, "tool_choice")
