"""The ways in which models write thoughts and calls, as data, and which of them a checkpoint has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from python_backends.text.door.thoughts import THOUGHTS

Pair = tuple[str, str]  # what stands before something, and behind it

NAME = r"(?P<name>[\w.\-]{1,256})"


@dataclass(frozen=True, slots=True)
class Tagged:
    """Arguments one by one, each with its name and value between marks."""

    name: Pair
    value: Pair
    end: str = ""  # of all arguments; empty: the call's end


@dataclass(frozen=True, slots=True)
class Format:
    """How one family of models writes. `signs`: texts that its chat templates have, all of them."""

    family: str
    signs: tuple[str, ...] = ()
    thoughts: tuple[Pair, ...] = ()
    call: Pair = ("", "")
    around: tuple[str, ...] = ()  # marks around several calls: no text
    # pattern of what stands between the call's beginning and its arguments; empty: one object has both
    head: str = ""
    tail: str = ""  # may stand behind the arguments
    tagged: Tagged | None = None  # None: the arguments are an object
    quote: str = ""  # around strings, in an object that is not quite JSON
    is_bare: bool = False  # an answer may begin with a call, without a mark
    has_channels: bool = False  # gpt-oss: `channels`

    @property
    def marks(self) -> frozenset[str]:
        """All texts that mean something."""
        return frozenset(text for text in _texts(self) if text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _texts(each)
    elif is_dataclass(value):
        for field in fields(value):
            if field.name not in ("family", "signs", "head", "tail"):
                yield from _texts(getattr(value, field.name))


# gpt-oss: parts of an answer have a header, which says whom they are for
CHANNELS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")

# in the order in which they are looked for
TABLE = (
    Format("gpt-oss", ("<|channel|>", "<|message|>", "<|start|>"), around=CHANNELS, has_channels=True),
    Format(
        "Gemma 4",
        ("<|tool_call>",),
        call=("<|tool_call>", "<tool_call|>"),
        head=rf"\s*call:{NAME}\s*",
        quote='<|"|>',
    ),
    Format(
        "FunctionGemma",
        ("<start_function_call>",),
        call=("<start_function_call>", "<end_function_call>"),
        head=rf"\s*call:{NAME}\s*",
        quote="<escape>",
    ),
    Format(
        "DeepSeek",
        ("<｜tool▁call▁begin｜>",),
        call=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"),
        # DeepSeek-V3 and R1; V3.1
        head=rf"\s*(?:function<｜tool▁sep｜>{NAME}\s*```json|(?P<name2>[\w.\-]{{1,256}})<｜tool▁sep｜>)\s*",
        tail="```",
    ),
    Format(
        "Kimi",
        ("<|tool_call_begin|>",),
        call=("<|tool_call_begin|>", "<|tool_call_end|>"),
        around=(
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            "<|tool_call_argument_begin|>",
        ),
        head=rf"\s*(?:functions\.)?{NAME}(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*",
    ),
    Format(
        "Mistral",
        ("[TOOL_CALLS]",),
        call=("[TOOL_CALLS]", ""),
        around=("[ARGS]", "[CALL_ID]"),
        head=rf"\s*{NAME}(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*",
    ),
    Format(
        "GLM",
        ("<arg_key>",),
        call=("<tool_call>", "</tool_call>"),
        head=rf"\s*{NAME}\s*",
        tagged=Tagged(("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")),
    ),
    Format(
        "Qwen3-Coder",
        ("<function=", "<parameter="),
        call=("<tool_call>", "</tool_call>"),
        head=rf"\s*<function={NAME}>\s*",
        tagged=Tagged(("<parameter=", ">"), ("", "</parameter>"), "</function>"),
    ),
    Format("Hermes", ("<tool_call>",), call=("<tool_call>", "</tool_call>")),
    Format("Llama", ("<|python_tag|>",), call=("<|python_tag|>", ""), is_bare=True),
    Format("Llama", ('{"name":', '"parameters":'), is_bare=True),
)


def format_of(template: str, tokens: Collection[str], answer: Any = None) -> Format | None:
    """Returns how a model writes whose chat template is `template` and whose added tokens are `tokens`.
    `answer`: the response_template of its tokenizer_config.json, which goes first. None: text alone.
    """
    told = _told(answer)
    found = next((each for each in TABLE if all(sign in template for sign in each.signs)), Format("none"))
    if told is not None and told.call[0]:
        found = told
    written = tuple(pair for pair in THOUGHTS if pair[1] in template or pair[1] in tokens)
    thoughts = told.thoughts if told is not None and told.thoughts else written
    made = replace(found, thoughts=() if found.has_channels else thoughts)
    return made if made.marks or made.is_bare else None


def _told(answer: Any) -> Format | None:
    """What a response template says, so far as it is said by texts and JSON; None: nothing."""
    told = answer.get("fields") if isinstance(answer, Mapping) else None
    if not isinstance(told, Mapping):
        return None
    thought, call = _pair(told.get("reasoning_content") or told.get("thinking")), ("", "")
    calls = told.get("tool_calls")
    if isinstance(calls, Mapping) and calls.get("content") == "json" and not calls.get("content_args"):
        call = _pair(calls)
    return Format("response_template", thoughts=(thought,) if all(thought) else (), call=call)


def _pair(field: Any) -> Pair:
    """The texts that open and close a field; empty if they are patterns."""
    if not isinstance(field, Mapping):
        return "", ""
    opens, closes = field.get("open"), field.get("close")
    if opens is None:  # a text behind white space
        pattern = str(field.get("open_pattern") or "").removeprefix(r"\s*")
        opens = pattern if pattern and re.escape(pattern) == pattern else None
    return (opens, closes) if isinstance(opens, str) and isinstance(closes, str) else ("", "")
