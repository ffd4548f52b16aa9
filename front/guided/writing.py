"""One guide of all that an answer must be: in the model's own way to write thoughts and calls, so far as its
marks are text. Special tokens, which no guide can have, are left out: then a call is an object alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from front.guided.guide import Format, Guide, tagged
from front.guided.lenient import OBJECT
from front.guided.wanted import Wanted
from front.parts import formats
from front.tools import Tool

Inputs = Mapping[str, Format]  # what the arguments of some tools must be, by the tools' names

NO_INPUTS: Inputs = {}
SPACES = {"type": "regex", "pattern": r"\s{0,2}"}


def call_form(form: formats.Format | None, is_visible: bool) -> formats.Format:
    """Returns how a call is written that an answer must have. `is_visible`: the marks are text."""
    has_objects = form is not None and form.call[0] and not (form.head or form.tagged)
    thoughts = form.thoughts if form is not None and is_visible else ()
    call = form.call if form is not None and has_objects and is_visible else ("", "")
    return formats.Format("object", thoughts=thoughts, call=call, is_bare=not call[0])


def must_call(
    form: formats.Format,
    tools: Sequence[Tool],
    calls_one: bool,
    open_thought: str,
    field: str,
    inputs: Inputs = NO_INPUTS,
) -> Guide:
    """The answer is a call, or several. `form`: of `call_form`."""
    return tagged(_behind_thoughts(form, open_thought, _calls(form, tools, calls_one, inputs)), field)


def text_or_calls(
    form: formats.Format,
    tools: Sequence[Tool],
    found: Wanted,
    calls_one: bool,
    open_thought: str,
    inputs: Inputs = NO_INPUTS,
) -> Guide:
    """The answer is a text of a format, or calls."""
    either = {"type": "or", "elements": [_calls(form, tools, calls_one, inputs), found.form]}
    return tagged(_behind_thoughts(form, open_thought, either), found.field)


def _calls(form: formats.Format, tools: Sequence[Tool], calls_one: bool, inputs: Inputs) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": [_tag(form, tool, None, inputs) for tool in tools],
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": calls_one,
    }


def may_call(
    form: formats.Format,
    tools: Sequence[Tool],
    strict: Collection[str],
    calls_one: bool,
    field: str,
    inputs: Inputs = NO_INPUTS,
) -> Guide:
    """The arguments of calls follow the schemas of tools that are `strict`, by their names; those of others
    that have no `inputs` are any object. `form`: of `call_form`, with a mark.
    """
    tags = {
        "type": "triggered_tags",
        "triggers": [form.call[0]],
        "tags": [_tag(form, tool, strict, inputs) for tool in tools],
        "stop_after_first": calls_one,
    }
    return tagged(tags, field)


def text_of(form: formats.Format, found: Wanted, open_thought: str) -> Guide:
    """The answer is a text of a format; a thought may come before."""
    return tagged(_behind_thoughts(form, open_thought, found.form), found.field)


def _behind_thoughts(form: formats.Format, open_thought: str, last: Format) -> Format:
    if open_thought:
        return {"type": "sequence", "elements": [_any("", open_thought), SPACES, last]}
    if not form.thoughts:
        return last
    (opens, closes) = form.thoughts[0]
    thought = {"type": "sequence", "elements": [_any(opens, closes), SPACES, last]}
    return {"type": "or", "elements": [thought, last]}


def _any(begin: str, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": end}


def _tag(form: formats.Format, tool: Tool, strict: Collection[str] | None, inputs: Inputs) -> Format:
    """One call. `strict`: None: all are."""
    name = tool["function"]["name"]
    begin, end = (f"{form.call[0]}\n", f"\n{form.call[1]}") if form.call[0] else ("", "")
    is_strict = strict is None or name in strict
    schema: Mapping[str, Any] = tool["function"].get("parameters") or OBJECT if is_strict else OBJECT
    return {
        "type": "tag",
        "begin": f'{begin}{{"name": {json.dumps(name)}, "arguments": ',
        "content": inputs.get(name) or {"type": "json_schema", "json_schema": schema},
        "end": f"}}{end}",
    }
