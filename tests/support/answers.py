"""Answers of models of many families, as they write them, and the parts that they have."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from front.parts.events import Arguments, Begun, Ended, Event, Text, Thought
from front.parts.formats import TABLE, Format
from front.parts.machine import Expected, Machine, Tokens
from python_backends.text.door.thoughts import THINK

STRING = {"type": "string"}
SCHEMAS = {
    "weather": {"properties": {"city": STRING, "days": {"type": "integer"}}},
    "write": {"properties": {"path": STRING, "text": STRING, "zip": STRING, "list": {"type": "array"}}},
    "now": {"type": "object", "properties": {}},
}


def form(family: str, *thoughts: tuple[str, str]) -> Format:
    found = next(each for each in TABLE if each.family == family)
    return Format(
        **{name: getattr(found, name) for name in Format.__slots__ if name != "thoughts"}, thoughts=thoughts
    )


def call(name: str, arguments: Any) -> list[Event]:
    """A text of `arguments` is as the model wrote it."""
    given = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return [Begun(name), Arguments(given), Ended()]


@dataclass(frozen=True)
class Sample:
    name: str
    form: Format
    answer: str
    parts: list[Event]
    tokens: tuple[str, ...] = ()  # marks that are tokens; the others are letters
    hidden: tuple[str, ...] = ()  # of these, those that answers don't show
    expected: Expected = field(default_factory=lambda: Expected(SCHEMAS))

    @property
    def known(self) -> Tokens:
        characters = {mark: chr(0xD800 + i) for i, mark in enumerate(self.tokens)}
        return Tokens(characters, [characters[mark] for mark in self.hidden])

    @property
    def as_it_comes(self) -> str:
        return self.known.spell(self.answer)


def parts_of(sample: Sample, pieces: list[str]) -> list[Event]:
    """What follows each other of one kind is one part."""
    machine = Machine(sample.form, sample.known, sample.expected)
    events = [event for piece in pieces for event in machine.feed(piece)] + machine.feed("", is_over=True)
    return joined(events)


def joined(events: list[Event]) -> list[Event]:
    parts: list[Event] = []
    for event in events:
        last = parts[-1] if parts else None
        if isinstance(event, Text | Thought | Arguments) and type(event) is type(last):
            parts[-1] = type(event)(last.text + event.text)  # type: ignore[union-attr]
        else:
            parts.append(event)
    return parts


def cuts(text: str, seed: int) -> Iterator[list[str]]:
    """In two at every place, in single characters, and at random."""
    yield [text]
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
    yield list(text)
    dice = random.Random(seed)
    for _ in range(20):
        places = sorted(dice.sample(range(len(text) + 1), min(len(text), dice.randint(1, 12))))
        yield [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


HERMES = form("Hermes", THINK)
PLAIN_HERMES = form("Hermes")
QWEN_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CODER, GLM = form("Qwen3-Coder", THINK), form("GLM", THINK)
LLAMA, MISTRAL = form("Llama"), form("Mistral", ("[THINK]", "[/THINK]"))
DEEPSEEK, KIMI = form("DeepSeek", THINK), form("Kimi", THINK)
GEMMA = form("Gemma 4", ("<|channel>thought\n", "<channel|>"))
GPT_OSS, FUNCTION_GEMMA = form("gpt-oss"), form("FunctionGemma")
MISTRAL_TOKENS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")
GEMMA_TOKENS = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")
DEEPSEEK_TOKENS = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁calls▁end｜>", "<think>", "</think>"),
)
FUNCTION_GEMMA_TOKENS = ("<start_function_call>", "<end_function_call>", "<escape>")
NOT_OVER = '{"city": "Bo'

SAMPLES = [
    Sample(
        "Qwen3: thought, text, two calls",
        HERMES,
        '<think>\nHm: 20 °C?\n</think>\n\nI look. 🌍\n<tool_call>\n{"name": "weather", "arguments": {"city":'
        ' "Łódź",  "days":2}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        [
            *(Thought("Hm: 20 °C?"), Text("I look. 🌍")),
            *call("weather", '{"city": "Łódź",  "days":2}'),
            *call("now", {}),
        ],
        QWEN_TOKENS,
    ),
    Sample(
        "Hermes in letters: a mark within a string, arguments before the name, arguments as a text",
        PLAIN_HERMES,
        '<tool_call>{"arguments": {"text": "a </tool_call> \\" {b"}, "name": "write"}</tool_call>'
        '<tool_call>{"name":"now","arguments":"{\\"a\\": 1}"}</tool_call> Done.',
        [
            *call("write", '{"text": "a </tool_call> \\" {b"}'),
            *call("now", '{"a": 1}'),
            Text("Done."),
        ],
    ),
    Sample(
        "SmolLM2: a list of calls",
        PLAIN_HERMES,
        '<tool_call>[{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "now"}]</tool_call>',
        [*call("weather", {"city": "Rome"}), *call("now", {})],
    ),
    Sample(
        "Qwen3-Coder: the schema says what is a string",
        CODER,
        "On it.\n<tool_call>\n<function=write>\n<parameter=zip>\n01234\n</parameter>\n<parameter=text>\n"
        'if a < b:\n    say("é")\n\n</parameter>\n<parameter=list>\n[1, 2]\n</parameter>\n<parameter=mode>\n'
        "fast\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [
            Text("On it."),
            *call(
                "write",
                {"zip": "01234", "text": 'if a < b:\n    say("é")\n', "list": [1, 2], "mode": "fast"},
            ),
            *call("now", {}),
        ],
        QWEN_TOKENS,
    ),
    Sample(
        "GLM: arguments one by one",
        GLM,
        "<think>so</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        [Thought("so"), *call("weather", {"city": "12", "days": 3}), *call("now", {})],
        (*QWEN_TOKENS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    Sample(
        "Llama 3.1: a call without a mark",
        LLAMA,
        '{"name": "weather", "parameters": {"city": "Oslo"}}',
        call("weather", {"city": "Oslo"}),
    ),
    Sample(
        "Llama 3.2: several, and the token of the Python tool",
        LLAMA,
        '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}; {"name": "weather", '
        '"parameters": {"city": "x"}}',
        [*call("now", {}), *call("weather", {"city": "x"})],
        ("<|python_tag|>",),
        ("<|python_tag|>",),
    ),
    Sample(
        "a call without a mark behind a thought",
        form("Llama", THINK),
        '<think>Hm.</think>\n\n{"name": "now", "parameters": {}}',
        [Thought("Hm."), *call("now", {})],
        ("<think>", "</think>"),
    ),
    Sample("Llama: JSON that is no call", LLAMA, ' {"a": 1}\n', [Text(' {"a": 1}\n')]),
    Sample(
        "Llama: a function that there is not",
        LLAMA,
        '{"name": "fly", "parameters": {}}',
        [Text('{"name": "fly", "parameters": {}}')],
    ),
    Sample(
        "Mistral 7B: a list",
        MISTRAL,
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Nice"}, "id": "abcdefghi"}, {"name": "now",'
        ' "arguments": {}}]',
        [*call("weather", {"city": "Nice"}), *call("now", {})],
        MISTRAL_TOKENS,
        MISTRAL_TOKENS,
    ),
    Sample(
        "Mistral: names before the arguments, thoughts",
        MISTRAL,
        '[THINK]Two.[/THINK]Yes.[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Nice"}'
        "[TOOL_CALLS]now[ARGS]{}",
        [Thought("Two."), Text("Yes."), *call("weather", {"city": "Nice"}), *call("now", {})],
        MISTRAL_TOKENS,
        MISTRAL_TOKENS,
    ),
    Sample(
        "DeepSeek R1: a thought that the template opened, fenced arguments",
        DEEPSEEK,
        "I need it.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
        '```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n'
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [Thought("I need it."), *call("weather", {"city": "Paris"}), *call("now", {})],
        DEEPSEEK_TOKENS,
        DEEPSEEK_TOKENS[:5],
        Expected(SCHEMAS, open_thought="</think>"),
    ),
    Sample(
        "DeepSeek V3.1",
        DEEPSEEK,
        'Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Lyon"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [Text("Ok."), *call("weather", {"city": "Lyon"})],
        DEEPSEEK_TOKENS,
        DEEPSEEK_TOKENS[:5],
    ),
    Sample(
        "Kimi",
        KIMI,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Xi\'an"}<|tool_call_end|><|tool_calls_section_end|>',
        call("weather", {"city": "Xi'an"}),
        (
            *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
            *("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        ),
    ),
    Sample(
        "Gemma 4: names and strings in its own way",
        GEMMA,
        '<|channel>thought\nLook <b>\n<channel|>Sure.<|tool_call>call:write{text:<|"|>a "b"\n{c}<|"|>,n:-1.5,'
        'ok:true,none:null,list:[<|"|>x<|"|>,{k:2}]}<tool_call|><|tool_call>call:now{}<tool_call|>',
        [
            *(Thought("Look <b>"), Text("Sure.")),
            *call(
                "write", {"text": 'a "b"\n{c}', "n": -1.5, "ok": True, "none": None, "list": ["x", {"k": 2}]}
            ),
            *call("now", {}),
        ],
        GEMMA_TOKENS,
        GEMMA_TOKENS,
    ),
    Sample(
        "FunctionGemma",
        FUNCTION_GEMMA,
        "<start_function_call>call:weather{city:<escape>Rom, {x}<escape>,days:2}<end_function_call>",
        call("weather", {"city": "Rom, {x}", "days": 2}),
        FUNCTION_GEMMA_TOKENS,
    ),
    Sample(
        "gpt-oss: channels",
        GPT_OSS,
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>I ask."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        '{"city": "Rio"}<|call|>',
        [Thought("Think."), Text("I ask."), *call("weather", {"city": "Rio"})],
        GPT_OSS.around,
        GPT_OSS.around,
    ),
    Sample(
        "gpt-oss: the receiver is in the role, then the last channel",
        GPT_OSS,
        " to=functions.now<|channel|>commentary json<|message|><|call|><|start|>assistant<|channel|>final"
        "<|message|>Noon.<|return|>",
        [*call("now", {}), Text("Noon.")],
        GPT_OSS.around,
        GPT_OSS.around,
    ),
    # --- what goes wrong elsewhere
    Sample(
        "a call within a thought ends it, if its mark is a token",
        HERMES,
        '<think>I call <tool_call>{"name": "now", "arguments": {}}</tool_call>',
        [Thought("I call"), *call("now", {})],
        QWEN_TOKENS,
    ),
    Sample(
        "a thought that writes about calls and thoughts",
        form("Hermes", THINK),
        '<think>Say <tool_call>{"name": "now"}</tool_call>? <think> `x`.</think>No.',
        [Thought('Say <tool_call>{"name": "now"}</tool_call>? <think> `x`.'), Text("No.")],
        ("<think>", "</think>"),
    ),
    Sample(
        "no thought at all",
        HERMES,
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        call("now", {}),
        QWEN_TOKENS,
    ),
    Sample(
        "a thought that is never closed",
        HERMES,
        "so I think \n",
        [Thought("so I think")],
        QWEN_TOKENS,
        expected=Expected(SCHEMAS, open_thought="</think>"),
    ),
    Sample(
        "a text that begins as a mark does, also at its end",
        form("Hermes", THINK),
        " a <tool b <tool_cal <<tool_",
        [Text(" a <tool b <tool_cal <<tool_")],
    ),
    Sample(
        "a call that is none is text",
        PLAIN_HERMES,
        "See \n<tool_call>nothing</tool_call> there \n",
        [Text("See \n<tool_call>nothing</tool_call> there \n")],
    ),
    Sample(
        "a call that the limit cut has no end",
        PLAIN_HERMES,
        f'<tool_call>{{"name": "weather", "arguments": {NOT_OVER}',
        [Begun("weather"), Arguments(NOT_OVER)],
    ),
    Sample(
        "a call whose name the limit cut is text",
        PLAIN_HERMES,
        '<tool_call>{"name": "wea',
        [Text('<tool_call>{"name": "wea')],
    ),
    Sample(
        "arguments that are no JSON are passed on as they are",
        HERMES,
        '<tool_call>{"name": "now", "arguments": {"a": oops}</tool_call> Well.',
        [Begun("now"), Arguments('{"a": oops}'), Ended(), Text("Well.")],
        QWEN_TOKENS,
    ),
    Sample(
        "one call, where only one may be",
        PLAIN_HERMES,
        '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now"}</tool_call> more',
        call("now", {}),
        expected=Expected(SCHEMAS, most_calls=1),
    ),
    Sample(
        "without tools there are no calls",
        PLAIN_HERMES,
        'So: <tool_call>{"name": "now"}</tool_call>\n',
        [Text('So: <tool_call>{"name": "now"}</tool_call>\n')],
        expected=Expected(),
    ),
    Sample(
        "a call without arguments, then one with some",
        HERMES,
        '<tool_call>\n{"name": "now"}\n</tool_call>\n<tool_call>\n{"name": "weather", "arguments": '
        '{"city": "B"}}\n</tool_call>',
        [*call("now", {}), *call("weather", {"city": "B"})],
        QWEN_TOKENS,
    ),
]
