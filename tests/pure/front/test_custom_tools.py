"""Custom tools: their grammars as guides of a call's one text, and the text as it comes."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from front.errors import ProblemError
from front.guided.inputs import inputs_of
from front.parts.input import Input
from tests.pure.front.conftest import MESSAGES
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, events
from tests.support.guided import END, allowed, drawn, matcher
from tests.support.tool_model import Answers

EVENT = TypeAdapter(ResponseStreamEvent)
# as Codex sends it
PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
SUM = (
    'start: sum\nsum: item | sum "+" item // it recurs\nitem: "(" sum ")" | "a".."c" | TEXT\nTEXT: /"[^"]*"/'
)
CASES: list[tuple[str, str, list[str], list[str]]] = [
    (
        "lark",
        PATCH,
        [
            '*** Begin Patch\n*** Add File: a "b"\\c.py\n+say("x\\n")\t# Łódź\n+\n*** End Patch',
            "*** Begin Patch\n*** Delete File: a\n*** Update File: b\n@@\n-x\n+y\n*** End Patch\n",
        ],
        ["", "*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Delete File: \n*** End Patch"],
    ),
    ("lark", SUM, ["a+(b+c)", '"\\ \n"+a'], ["a+", "d", '"']),
    ("lark", 'start: "x" /[^a]/ /\\w{2}/\n%ignore " "', ['x"bc', "x \\ b1", "x\x01 __"], ["xabc", "x"]),
    ("lark", 'start: W "a"i\nW: /a.c/s\n%import common.WS', ["a\ncA"], ["a\ncb"]),
    ("regex", r'"\w+"\n', ['"ab"\n'], ["ab\n", '"ab"', '"ab"\n\n']),
    ("lark", "start: N common\ncommon: /x/\n%import common.INT -> N", ["12x"], ["x", "12"]),
    ("lark", 'start: "/".."1" /["\u4e00]/ /[^\\u4e00]/', ['/"a', "0\u4e00b"], ['2"a', '0"\u4e00', "0ab"]),
]


def custom(syntax: str, definition: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "patch", "format": form}


def guide(syntax: str, definition: str) -> str:
    form = inputs_of([custom(syntax, definition)])["patch"]
    return json.dumps({"type": "structural_tag", "format": form})


@pytest.mark.parametrize(("syntax", "definition", "right", "wrong"), CASES)
def test_the_text_in_a_calls_arguments_follows_the_grammar(
    syntax: str, definition: str, right: list[str], wrong: list[str]
) -> None:
    made = guide(syntax, definition)
    for text in (*right, *wrong):
        found = matcher("structural_tag", made)
        arguments = json.dumps({"input": text}, ensure_ascii=False)
        is_taken = found.take(list(arguments.encode()))
        assert (is_taken and END in allowed(found)) is (text in right), text


def test_a_long_grammar_is_written_again_in_no_time() -> None:
    """Of a thousand rules, each with the next one: by looking below each of them it would take a minute."""
    rules = "".join(f"r{n}: r{n + 1}\n" for n in range(1000))
    made = guide("lark", f'start: r0\n{rules}r1000: "a" again\nagain: "b" again | "c"\n')
    assert "again:" in made, "it has itself in it"
    assert "JOINED_R1000" not in made


@pytest.mark.parametrize(
    "definition",
    [
        'start: "' + '\\"' * 8000,
        "start: /" + "\\/" * 8000,
        "start: /" + "[" * 16_000 + "/",
        "start: /" + "".join(f'[a-{chr(0x4E00 + n)}"]' for n in range(2_600)) + "/",
    ],
    ids=["quotes", "slashes", "brackets", "classes"],
)
def test_a_grammar_that_means_harm_holds_up_no_stream(definition: str) -> None:
    began_s = time.thread_time()
    with contextlib.suppress(ProblemError):
        guide("lark", definition)
    assert time.thread_time() - began_s < 1


def test_the_grammars_of_all_tools_together_are_bounded() -> None:
    with pytest.raises(ProblemError, match=r"tools\[2\]\.format\.definition: the grammars of all"):
        inputs_of([custom("lark", 'start: "a"' + " " * 6_000)] * 3)


def test_what_is_drawn_by_a_grammar_is_json_of_a_text_of_it() -> None:
    made = guide("lark", 'start: ("a" | LF | /["\\\\]/)+ "."\n%import common.LF')
    texts = [drawn(matcher("structural_tag", made), seed, 200) for seed in range(6)]
    for text in [text for text, is_whole in texts if is_whole]:
        assert json.loads(text)["input"].endswith(".")
    assert any(is_whole for _, is_whole in texts)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"syntax": "ebnf", "definition": "a"}, "tools[0].format.syntax = 'ebnf': must be lark or regex"),
        ({"syntax": "lark"}, "tools[0].format.definition: must be a text"),
        ({"syntax": "lark", "definition": 'start: %json {"a": 1}'}, "%json: only %ignore"),
        ({"syntax": "lark", "definition": "start: /^a$/"}, "/^a$/: ^ has no place within a string"),
        ({"syntax": "lark", "definition": "start: /a(?=b)/"}, "/a(?=b)/: (? has no place within a string"),
        ({"syntax": "lark", "definition": 'start: a\na: "b"\na: "c"'}, "a: there are two rules of this name"),
        ({"syntax": "lark", "definition": 'start: "a" \0' + "9\0"}, "no text or pattern ends here"),
        ({"syntax": "lark", "definition": "x" * 16_385}, "must have at most 16,384 characters"),
    ],
)
def test_a_grammar_that_can_not_be_honoured_is_refused_by_its_place(form: dict[str, Any], says: str) -> None:
    with pytest.raises(ProblemError) as refused:
        inputs_of([{"type": "custom", "name": "p", "format": {"type": "grammar", **form}}])
    assert says in refused.value.body["error"]["message"]


def test_a_custom_tools_grammar_is_a_part_of_the_guide(tool_front: Front, ensemble: Ensemble) -> None:
    inner = custom("lark", 'start: "a"')
    deeper = {"name": "patch", "format": {"type": "grammar", "grammar": inner["format"]}}
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "custom", "custom": deeper}]}
    boxed = [{"type": "namespace", "name": "shell", "tools": [inner]}]
    for path, body in (
        ("/v1/responses", {"input": "x", "tools": [inner]}),
        ("/v1/responses", {"input": "x", "tools": boxed, "tool_choice": "required"}),
        ("/v1/chat/completions", chat),
    ):
        assert ask(tool_front, path, body)[0] == 200
        asked = ensemble.asked[-1]
        begun = b'<tool_call>\n{"name": "patch", "arguments": {"input": "'
        found = matcher(asked["guided_decoding_guide_type"], asked["guided_decoding_guide"], begun)
        assert allowed(found) == [ord("a")]


def test_a_grammar_that_no_call_follows_is_not_read(tool_front: Front) -> None:
    tools = [custom("lark", "start: /[/")]
    for choice, status in (("auto", 400), ("none", 200)):
        body = {"input": "x", "tools": tools, "tool_choice": choice}
        assert ask(tool_front, "/v1/responses", body)[0] == status
        form = {"type": "grammar", "grammar": tools[0]["format"]}
        chat = {"messages": MESSAGES, "tools": [{"type": "custom", "custom": {"name": "p", "format": form}}]}
        assert ask(tool_front, "/v1/chat/completions", {**chat, "tool_choice": choice})[0] == status


def test_the_text_of_a_custom_tool_comes_in_pieces(
    tool_front: Front, ensemble: Ensemble, tool_model: Path
) -> None:
    text = '*** Begin Patch\n+ "Łódź" \\ 🌍\n' * 20
    called = json.dumps({"name": "patch", "arguments": {"input": text}})
    ensemble.pieces = Answers(tool_model).pieces(f"<tool_call>{called}</tool_call>", (2,))
    came = events(tool_front, "/v1/responses", {"input": "x", "tools": [{"type": "custom", "name": "patch"}]})
    for _, data in came:
        EVENT.validate_python(data, strict=True)
    deltas = [data["delta"] for name, data in came if name == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 20
    assert "".join(deltas) == text
    (done,) = [data for name, data in came if name == "response.custom_tool_call_input.done"]
    assert done["input"] == text
    assert came[-1][1]["response"]["output"][0]["input"] == text


def test_a_text_is_the_same_in_any_pieces() -> None:
    random = Random(0)
    for _ in range(500):
        text = "".join(random.choices('a"\\\n🌍é\x01/u{}', k=random.randrange(12)))
        arguments = json.dumps({"input": text}, ensure_ascii=random.random() < 0.5)
        found, told = Input(), ""
        while arguments:
            size = random.randrange(1, 6)
            told, arguments = told + found.add(arguments[:size]), arguments[size:]
        assert told + found.end() == found.text == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", ""),
        ("{}", "{}"),
        ('{"other": 1, "input": "b"}', "b"),
        ("no JSON", "no JSON"),
        ('{"input": "cut \\ud83', "cut "),
        ('{"input": "half \\ud83d\\u0041"}', "half ?A"),
        ('{"input": "\\x"}', "\\x"),
    ],
)
def test_arguments_of_another_kind_are_the_text_themselves(arguments: str, text: str) -> None:
    found = Input()
    told = "".join(map(found.add, arguments)) + found.end()
    assert told == found.text == text
