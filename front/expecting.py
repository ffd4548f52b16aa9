"""What an answer may have: which tools it may call, and whether it begins within a thought."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from client.wire import Message
from front.model import Model
from front.parts.formats import Format
from front.parts.machine import Expected
from front.tools import Tool
from python_backends.text.door.chat import Extras


def expected_of(
    model: Model,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    extras: Mapping[str, Any],
    calls_one: bool,
) -> Expected:
    """`extras`: what belongs to the messages: tools that the template doesn't write are not called."""
    given = tools if "tools" in extras else ()
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in given}
    return Expected(
        schemas, int(calls_one), open_thought(model.form, _ending(model, messages, given, extras))
    )


def open_thought(form: Format | None, ending: str) -> str:
    """Returns what closes the thought that `ending`, the end of a prompt, leaves open; empty: none."""
    for opens, closes in form.thoughts if form is not None else ():
        if ending.rfind(opens.strip()) > ending.rfind(closes):
            return closes
    return ""


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
    return model.template.ending(system, Extras(tools=tuple(tools), named=named))
