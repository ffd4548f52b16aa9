"""The prompt of a message: for the ensemble, and for its tokens to be counted."""

from __future__ import annotations

from typing import Any

from client.wire import Message
from front.anthropic.asks import CountAsk
from front.anthropic.turns import turns_of
from front.model import Model
from front.tools import Tool, extras_of, of_anthropic, thinking
from python_backends.text.door.fitting import fitted

THINKS = {"enabled": True, "disabled": False}  # other types: as the template does by itself


def prompt_of(ask: CountAsk, model: Model) -> tuple[list[Message], list[Tool], dict[str, Any]]:
    """Returns the messages, the tools, and what the ensemble gets besides the messages. An answer goes on
    with an assistant's message that is the last one, unless that is white space. Raises ProblemError.
    """
    turns = turns_of(ask)
    last = turns[-1]
    continues = last.role == "assistant" and bool(last.content.strip()) and not last.calls
    kind = (ask.thinking or {}).get("type")
    named = thinking((ask.output_config or {}).get("effort"), "output_config.effort")
    if isinstance(kind, str) and kind in THINKS:
        named["enable_thinking"] = THINKS[kind]
    is_none = (ask.tool_choice or {}).get("type") == "none"
    tools = [] if is_none else list(of_anthropic(ask.tools or ()))
    messages = fitted(turns, model.template, bool(tools))
    return messages, tools, extras_of(model, tools, named, continues)
