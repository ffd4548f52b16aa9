"""What an answer may be: which tools it may call or must, what its text looks like, and whether it begins
within a thought.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from client.wire import Message
from front.guided.choice import REQUIRED, Choice
from front.guided.guide import Guide
from front.guided.lenient import lenient
from front.guided.wanted import Wanted
from front.guided.writing import Inputs, call_form, may_call, must_call, text_of, text_or_calls
from front.model import Model
from front.parts.answer import Shape
from front.parts.machine import Expected
from front.tools import Tool
from python_backends.text.door.chat import Extras
from python_backends.text.door.thoughts import open_thought


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request says about its answer. `strict`: names of the tools whose schemas calls must follow;
    `inputs`: what the arguments of those with grammars must be, by their names.
    """

    tools: Sequence[Tool]
    choice: Choice
    calls_one: bool = False
    strict: frozenset[str] = frozenset()
    inputs: Inputs = field(default_factory=dict)
    text: Wanted | None = None
    choice_field: str = "tool_choice"


def shape_of(
    model: Model, messages: Sequence[Message], extras: Mapping[str, Any], wish: Wish
) -> tuple[Shape, Guide | None]:
    """`extras`: what belongs to the messages. Tools that the template doesn't write are called only if one
    must be. Raises ProblemError.
    """
    callable_tools = wish.choice.among(wish.tools, wish.choice_field)
    must = wish.choice.mode == REQUIRED
    if not must and "tools" not in extras:
        callable_tools = []
    pairs = model.form.thoughts if model.form is not None else ()
    open_one = open_thought(pairs, _ending(model, messages, wish.tools, extras))
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in callable_tools}
    expected = Expected(schemas, int(wish.calls_one), open_one, wish.choice.names)
    is_visible = not model.mark_tokens.hidden
    form = call_form(model.form, is_visible)
    if not form.thoughts:
        open_one = ""
    continues = bool(extras.get("continue_final_message"))
    guided = Shape(form, replace(expected, open_thought=open_one), in_letters=True, continues=continues)
    followed = lenient(callable_tools, wish.strict)
    if must:
        asked = wish.choice_field
        return guided, must_call(form, followed, wish.calls_one, open_one, asked, wish.inputs)
    if wish.text is not None and callable_tools:
        return guided, text_or_calls(form, followed, wish.text, wish.calls_one, open_one, wish.inputs)
    if wish.text is not None:
        return guided, text_of(form, wish.text, open_one)
    is_strict = not {*wish.strict, *wish.inputs}.isdisjoint(schemas)
    if form.call[0] and schemas and (is_strict or wish.choice.names is not None):
        asked = "tools" if is_strict else wish.choice_field
        return guided, may_call(form, callable_tools, wish.strict, wish.calls_one, asked, wish.inputs)
    return Shape(model.form, expected, continues=continues), None


def _ending(
    model: Model, messages: Sequence[Message], tools: Sequence[Tool], extras: Mapping[str, Any]
) -> str:
    """Returns the end of the prompt, behind the last user's message, as the model's template writes it."""
    if model.form is None or not model.form.thoughts or model.template is None:
        return ""
    if extras.get("continue_final_message"):
        return str(messages[-1].get("content") or "")
    system = [message for message in messages[:1] if message["role"] == "system"]
    named = json.loads(extras.get("chat_template_kwargs", "{}"))
    given = tuple(tools[:1]) if "tools" in extras else ()  # what follows is the same for all
    return model.template.ending(system, Extras(tools=given, named=named))
