"""Conversations are fitted to what a chat template writes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from python_backends.checkpoint.templates import joined
from python_backends.nouns.request import RefusedError
from python_backends.text.door.fitting import fitted
from python_backends.text.door.turns import Call, Turn
from tests.support.text.templates import LLAMA, MISTRAL, TEXTS, TOOLS, template

ANY = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
FIRST_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}<{{ m.role }}>{{ m.content }}{% endif %}"
    "{% endfor %}"
)
STRICT = (  # as Gemma's
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('!') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
CHAT = [
    Turn("system", "s"),
    Turn("user", "u"),
    Turn("assistant", "a", (Call("1", "ls", {"p": 1}),)),
    Turn("tool", "t"),
    Turn("system", "late"),
    Turn("user", "v"),
]
CALL = 'a\n<tool_call>\n{"name": "ls", "arguments": {"p": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            ANY,
            [
                ("system", "s"),
                ("user", "u"),
                ("assistant", CALL),
                ("tool", "t"),
                ("system", "late"),
                ("user", "v"),
            ],
        ),
        (
            FIRST_SYSTEM,
            [
                ("system", "s"),
                ("user", "u"),
                ("assistant", CALL),
                ("tool", "t"),
                ("user", "late"),
                ("user", "v"),
            ],
        ),
        (STRICT, [("user", "s\n\nu"), ("assistant", CALL), ("user", "t\n\nlate\n\nv")]),
        (
            "{{ raise_exception('never') }}",
            [(turn.role, CALL if turn.calls else turn.content) for turn in CHAT],
        ),
    ],
)
def test_what_a_template_leaves_out_or_refuses_is_written_otherwise_at_its_place(
    source: str, expected: list[tuple[str, str]]
) -> None:
    made = [(message["role"], message["content"]) for message in fitted(CHAT, template(source), False)]
    assert made == expected


@pytest.mark.parametrize("source", [TOOLS, TEXTS])
def test_calls_stay_calls_where_the_template_writes_them(source: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": {"p": 1}}}
    assert fitted(CHAT, template(source), False)[2] == {
        "role": "assistant",
        "content": "a",
        "tool_calls": [call],
    }


NINE = (  # as Mistral's
    "{% for m in messages %}"
    "{% for id in m.tool_calls | map(attribute='id') | list + [m.tool_call_id] if id %}"
    "{% if id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ id }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("given", ["a1b2C3d4E", "call_" + "a" * 24, "toolu_1", "call-0000", ""])
def test_ids_of_calls_are_shortened_where_the_template_takes_nine_letters_alone(given: str) -> None:
    call = Turn("assistant", "a", (Call(given, "ls", {"p": 1}),))
    turns = [CHAT[1], call, Turn("tool", "t", call_id=given)]
    of_call, of_result = _ids(turns, NINE + TOOLS)
    assert of_call == of_result
    assert re.fullmatch("[A-Za-z0-9]{9}", of_call)
    assert (of_call == given) == (given == "a1b2C3d4E")
    assert _ids(turns, NINE + TOOLS) == (of_call, of_call)  # in a later request, too
    assert _ids(turns, TOOLS) == (given, given)


def _ids(turns: list[Turn], source: str) -> tuple[str, str]:
    """Of the call, and of what it gave."""
    _, call, result = fitted(turns, template(source), False)
    template(source).prompt([{"role": "user", "content": "u"}, call, result])
    return call["tool_calls"][0]["id"], result["tool_call_id"]


CALL_ALONE = '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'
CALLED = [Turn("assistant", calls=(Call("a1b2C3d4E", "ls", {}),)), Turn("tool", "t", call_id="a1b2C3d4E")]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (
            [Turn("user", "u"), Turn("user", "v"), *CALLED],
            [("user", "u\n\nv"), ("assistant", ""), ("tool", "t")],
        ),
        (
            [Turn("system", "s"), Turn("user", "u"), *CALLED],
            [("user", "s\n\nu"), ("assistant", ""), ("tool", "t")],
        ),
        (  # the text has no place of its own here
            [Turn("user", "u"), replace(CALLED[0], content="a"), CALLED[1], Turn("assistant", "b")],
            [("user", "u"), ("assistant", ""), ("tool", "t"), ("assistant", "b")],
        ),
        (  # users' turns on both sides of a tool's have to alternate, too
            [Turn("user", "u"), *CALLED, Turn("user", "v")],
            [("user", "u"), ("assistant", CALL_ALONE), ("user", "t\n\nv")],
        ),
    ],
)
def test_tools_turns_stay_where_the_others_have_to_alternate_if_they_can(
    turns: list[Turn], expected: list[tuple[str, str]]
) -> None:
    made = fitted(turns, template(MISTRAL), False)
    assert [(message["role"], message["content"]) for message in made] == expected
    template(MISTRAL).prompt(made)


def test_where_a_message_takes_one_call_and_no_text_each_has_its_own_and_results_follow_their_calls() -> None:
    calls = tuple(Call(each, "ls", {}) for each in "123")
    results = [Turn("tool", f"of {each}", call_id=each) for each in "21x"]
    turns = [Turn("user", "u"), Turn("assistant", "a", calls), *results, Turn("user", "v")]
    made = fitted(turns, template(LLAMA), False)
    template(LLAMA).prompt(made)
    kinds = [(message["role"], message["content"]) for message in made]
    called = [call["id"] for message in made for call in message.get("tool_calls", ())]
    assert kinds == [
        ("user", "u"),
        ("assistant", "a"),
        ("assistant", ""),
        ("tool", "of 1"),
        ("assistant", ""),
        ("tool", "of 2"),
        ("assistant", ""),
        ("tool", "of x"),
        ("user", "v"),
    ]
    assert called == ["1", "2", "3"]


def test_the_ensemble_refuses_a_text_that_the_template_leaves_out_because_of_a_call() -> None:
    function = {"name": "ls", "arguments": {}}
    call = {"id": "1", "type": "function", "function": function}
    for content in ("", " \n"):
        template(LLAMA).prompt([{"role": "assistant", "content": content, "tool_calls": [call]}])
    with pytest.raises(RefusedError, match=r"^messages\[0\]\.content: .* leaves it out"):
        template(LLAMA).prompt([{"role": "assistant", "content": "a", "tool_calls": [call]}])


@pytest.mark.parametrize("source", [ANY, FIRST_SYSTEM, TOOLS])
def test_a_longer_conversation_begins_as_the_shorter_one(source: str) -> None:
    """So its prompt does too."""
    shorter, longer = (fitted(turns, template(source), False) for turns in (CHAT[:4], CHAT))
    assert longer[:4] == shorter


WITH_TOOLS = joined(ANY, "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + TOOLS)


@pytest.mark.parametrize("has_tools", [True, False])
def test_a_template_for_chats_with_tools_is_one_where_there_are_tools(has_tools: bool) -> None:
    made = template(WITH_TOOLS)
    assert made.probe.writes_tools
    answer = fitted(CHAT, made, has_tools)[2]
    assert ("tool_calls" in answer) == has_tools
    assert answer["content"] == ("a" if has_tools else CALL)
