"""Thoughts, texts and calls in answers of many families, in pieces of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from front.model import Model
from front.parts.answer import Parts, Shape
from front.parts.events import Arguments, Begun, Ended, Text, Thought
from front.parts.formats import Format, format_of
from front.parts.machine import Expected, Machine, Tokens
from python_backends.settings import ModelSettings, Settings
from python_backends.text.door.thoughts import open_thought
from python_backends.watching.board import Board
from tests.support.answers import (
    CODER,
    DEEPSEEK,
    GEMMA,
    GLM,
    GPT_OSS,
    HERMES,
    MISTRAL,
    SAMPLES,
    SCHEMAS,
    Sample,
    cuts,
    joined,
    parts_of,
)
from tests.support.tool_model import ANSWER, ARGUMENTS, SHOWN, TEXT, THOUGHT, Answers

LONGEST_MARK = 24  # characters


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_an_answers_parts_are_the_same_wherever_it_is_cut(sample: Sample) -> None:
    for pieces in cuts(sample.as_it_comes, seed=len(sample.answer)):
        assert parts_of(sample, pieces) == sample.parts, pieces


def test_what_is_a_token_counts_as_that_token_alone() -> None:
    """The same letters, typed or thought, are letters."""
    known = Tokens({"</think>": "\ud800", "<tool_call>": "\ud801"})
    machine = Machine(HERMES, known, Expected(SCHEMAS, open_thought="</think>"))
    events = machine.feed("the end is </think>, a call <tool_call>\ud800 <tool_call>{}", is_over=True)
    assert joined(events) == [
        Thought("the end is </think>, a call <tool_call>"),
        Text("<tool_call>{}"),
    ]


def test_a_token_behind_a_backslash_is_that_token() -> None:
    """It ends the call, which is cut, and no half of a pair gets into the arguments."""
    machine = Machine(HERMES, Tokens({"<tool_call>": "\ud800", "</tool_call>": "\ud801"}), Expected(SCHEMAS))
    events = machine.feed('\ud800{"name": "write", "arguments": {"text": "C:\\\ud801', is_over=True)
    assert joined(events)[:2] == [Begun("write"), Arguments('{"text": "C:\\')]


CALLED_BOTH = {
    "Hermes": (
        HERMES,
        '<tool_call>{"name": "weather", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    ),
    "Qwen3-Coder": (
        CODER,
        "<tool_call>\n<function=weather>\n</function>\n</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    ),
    "GLM": (GLM, "<tool_call>weather\n</tool_call>", "<tool_call>now\n</tool_call>"),
    "Mistral": (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}', "[TOOL_CALLS]now[ARGS]{}"),
}


@pytest.mark.parametrize("family", CALLED_BOTH)
def test_the_call_of_a_tool_that_may_not_be_called_is_text(family: str) -> None:
    form, other, allowed = CALLED_BOTH[family]
    called = [Begun("now"), Arguments("{}"), Ended()]
    machine = Machine(form, Tokens(), Expected(SCHEMAS, names={"now"}))
    assert joined(machine.feed(f"{other}\n{allowed}", is_over=True)) == [Text(other), *called]
    machine = Machine(form, Tokens(), Expected(SCHEMAS))
    assert joined(machine.feed(f"{other}\n{allowed}", is_over=True))[0] == Begun("weather")


def test_a_part_for_a_tool_that_may_not_be_called_is_text() -> None:
    """Of gpt-oss's channels."""
    machine = Machine(GPT_OSS, Tokens(), Expected(SCHEMAS, names={"now"}))
    parts = [
        f"<|channel|>commentary to=functions.{name}<|message|>{{}}<|call|>" for name in ("weather", "now")
    ]
    events = joined(machine.feed("<|start|>assistant".join(parts), is_over=True))
    assert events == [Text("{}"), Begun("now"), Arguments("{}"), Ended()]


@pytest.mark.parametrize("given", ["", "null"])
def test_arguments_that_say_nothing_are_an_empty_object(given: str) -> None:
    machine = Machine(HERMES, Tokens(), Expected(SCHEMAS))
    written = given or '""'
    call = f'<tool_call>{{"name": "now", "arguments": {written}}}</tool_call>'
    assert joined(machine.feed(call, is_over=True)) == [Begun("now"), Arguments("{}"), Ended()]


OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
OTHER = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/x"}]}


@pytest.mark.parametrize("form", [CODER, GLM], ids=lambda form: form.family)
@pytest.mark.parametrize(
    ("schema", "written", "expected"),
    [
        (OPTIONAL, "0042", '"0042"'),
        (OPTIONAL, '{"a": 1}', r'"{\"a\": 1}"'),
        (OPTIONAL, "\nnull\n", "null"),
        ({"type": ["string", "null"]}, "true", '"true"'),
        ({"type": ["string", "integer"]}, "7", "7"),
        (OTHER, "7", "7"),
        ({"type": "integer"}, "7", "7"),
        ({"type": {}}, "7", "7"),
        ({}, "7", "7"),
    ],
)
def test_a_string_that_may_be_null_is_a_string_whatever_it_looks_like(
    form: Format, schema: dict[str, Any], written: str, expected: str
) -> None:
    machine = Machine(form, Tokens(), Expected({"write": {"properties": {"zip": schema}}}))
    call = {
        "Qwen3-Coder": "<tool_call><function=write><parameter=zip>VALUE</parameter></function></tool_call>",
        "GLM": "<tool_call>write<arg_key>zip</arg_key><arg_value>VALUE</arg_value></tool_call>",
    }[form.family]
    events = joined(machine.feed(call.replace("VALUE", written), is_over=True))
    assert events == [Begun("write"), Arguments(f'{{"zip": {expected}}}'), Ended()]


@pytest.mark.parametrize(
    ("form", "begun"),
    [
        (HERMES, '<tool_call>{"name": "write", "arguments": {"text": "'),
        (CODER, "<tool_call>\n<function=write>\n<parameter=text>\n"),
        (GLM, "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>"),
        (MISTRAL, '[TOOL_CALLS]write[ARGS]{"text": "'),
        (DEEPSEEK, '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜>{"text": "'),
        (GEMMA, '<|tool_call>call:write{text:<|"|>'),
    ],
    ids=lambda given: getattr(given, "family", ""),
)
def test_long_arguments_are_passed_on_as_they_come(form: Format, begun: str) -> None:
    """20 kB, of a call that never ends: no more is held back than a mark may have."""
    machine = Machine(form, Tokens(), Expected(SCHEMAS))
    machine.feed(begun)
    num_held = 0
    for number in range(2000):
        events = machine.feed(piece := f"{number:09} ")
        num_held += len(piece) - sum(len(each.text) for each in events if isinstance(each, Arguments))
        assert num_held <= LONGEST_MARK


@pytest.mark.parametrize(
    ("template", "tokens", "family", "num_thoughts"),
    [
        ("{{ '<tool_call>' }}", SHOWN, "Hermes", 1),
        ("<tool_call><function=f><parameter=p>", (), "Qwen3-Coder", 0),
        ("<tool_call><arg_key>", (), "GLM", 0),
        ("[TOOL_CALLS]", ("[THINK]", "[/THINK]"), "Mistral", 1),
        ("<|start|><|channel|>final<|message|>", (), "gpt-oss", 0),
        ("<|tool_call>call:", ("<|channel>", "<channel|>"), "Gemma 4", 1),
        ('Respond with {"name": function name, "parameters": dictionary}', (), "Llama", 0),
        ("{{ content }}", ("<think>", "</think>"), "none", 1),
    ],
)
def test_a_format_is_found_by_template_and_tokens(
    template: str, tokens: tuple[str, ...], family: str, num_thoughts: int
) -> None:
    found = format_of(template, tokens)
    assert found is not None
    assert (found.family, len(found.thoughts)) == (family, num_thoughts)


def test_a_template_without_signs_means_text_alone() -> None:
    assert format_of("{{ content }}", ("<|end|>",)) is None


def test_a_tokenizers_own_response_template_goes_first() -> None:
    told = {
        "reasoning_content": {"open": "<t>", "close": "</t>"},
        "tool_calls": {"open_pattern": r"\s*<c>", "close": "</c>", "content": "json"},
    }
    found = format_of("<tool_call> <think>", (), {"fields": told})
    assert found is not None
    assert (found.thoughts, found.call) == ((("<t>", "</t>"),), ("<c>", "</c>"))
    odd = {"reasoning_content": {"open": 3}, "tool_calls": {"open_pattern": "(a|b)", "content": "json"}}
    found = format_of("<tool_call>", (), {"fields": odd})
    assert found is not None
    assert found.family == "Hermes"


@pytest.mark.parametrize(
    ("ending", "closes"),
    [
        ("<|assistant|>", ""),
        ("<|assistant|><think>\n", "</think>"),
        ("<|assistant|><think>\n\n</think>\n\n", ""),
    ],
)
def test_the_prompts_end_says_whether_a_thought_is_open(ending: str, closes: str) -> None:
    assert open_thought(HERMES.thoughts, ending) == closes


def test_tokens_and_text_come_together_whatever_is_held_back(tool_model: Path) -> None:
    """Characters of several tokens, several tokens in one piece, marks among them."""
    model = Model(Settings(model=ModelSettings(directory=str(tool_model))), Board())
    answers = Answers(tool_model)
    shape = Shape(model.form, Expected({"weather": {}, "now": {}}))
    wanted = [
        *(Thought(THOUGHT), Text(TEXT), Begun("weather"), Arguments(ARGUMENTS), Ended()),
        *(Begun("now"), Arguments("{}"), Ended()),
    ]
    for sizes in ((1,), (2,), (3, 1), (7,), (1000,)):
        parts = Parts(model, shape)
        events = [event for piece in answers.pieces(ANSWER, sizes) for event in parts.add(piece)]
        assert joined(events) == wanted, sizes
