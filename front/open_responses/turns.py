"""Reads a conversation as a list of items: messages, thoughts, calls of tools and what these gave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from front.errors import refused
from front.log_once import log_once
from front.open_responses.asks import ResponsesAsk
from python_backends.text.door.turns import Call, Turn, arguments_of, joined

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system", "tool": "tool"}
TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
NO_TEXTS = ("input_image", "input_file", "input_audio")
OURS = "gapless:"  # before the text of a thought in `encrypted_content`
CALLS = ("function_call", "custom_tool_call")
RESULTS = ("function_call_output", "custom_tool_call_output")
SKIPPED = "skipped: items of the type %r"


def turns_of(ask: ResponsesAsk) -> list[Turn]:
    """Raises ProblemError."""
    turns = [Turn("system", ask.instructions)] if ask.instructions else []
    if isinstance(ask.input, str):
        return [*turns, Turn("user", ask.input)]
    reader = _Reader(turns)
    for i, item in enumerate(ask.input):
        reader.read(f"input[{i}]", item)
    if not turns:
        raise refused("input", ": must have at least one message")
    return turns


class _Reader:
    """Joins the items of one turn: a thought, a message and several calls."""

    def __init__(self, turns: list[Turn]) -> None:
        self._turns = turns
        self._thought = ""

    def read(self, name: str, item: dict[str, Any]) -> None:
        """Raises ProblemError."""
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            self._message(name, item)
        elif kind in CALLS:
            self._call(item, kind)
        elif kind in RESULTS:
            said = text_of(f"{name}.output", item.get("output"))
            self._turns.append(Turn("tool", said, call_id=str(item.get("call_id") or "")))
        elif kind == "reasoning":
            said = text_of(f"{name}.content", item.get("content") or item.get("summary")) or _ours(item)
            self._thought = _together(self._thought, said)
        elif kind == "item_reference":
            said = f" = {kind!r}: this server keeps no items; send them whole (`store: false`)"
            raise refused(f"{name}.type", said, "unsupported_value")
        else:
            log_once(SKIPPED, str(kind)[:40])

    def _message(self, name: str, item: dict[str, Any]) -> None:
        role = ROLES.get(str(item.get("role")))
        if role is None:
            said = f" = {str(item.get('role'))[:40]!r}: must be one of {', '.join(ROLES)}"
            raise refused(f"{name}.role", said)
        content = text_of(f"{name}.content", item.get("content"))
        if role == "system" and len(self._turns) == 1 and self._turns[0].role == "system":
            # many templates take one system message
            self._turns[0] = Turn("system", f"{self._turns[0].content}\n\n{content}")
            return
        thought = self._thought if role == "assistant" else ""
        if role in ("assistant", "user"):  # a user's: the turn of the thought was broken off
            self._thought = ""
        self._turns.append(Turn(role, content, thought=thought))

    def _call(self, item: dict[str, Any], kind: str) -> None:
        given = arguments_of(item.get("arguments"))
        arguments = given if kind == "function_call" else {"input": str(item.get("input") or "")}
        call = Call(str(item.get("call_id") or ""), str(item.get("name") or ""), arguments)
        last = self._turns[-1] if self._turns else None
        if last is None or last.role != "assistant":
            last = Turn("assistant")
            self._turns.append(last)
        thought, self._thought = _together(last.thought, self._thought), ""
        self._turns[-1] = replace(last, calls=(*last.calls, call), thought=thought)


def _together(*thoughts: str) -> str:
    """Those of one turn."""
    return joined([each for each in thoughts if each])


def _ours(item: dict[str, Any]) -> str:
    """Returns the text of a thought that this server gave away; those of other servers are skipped."""
    given = item.get("encrypted_content")
    return given.removeprefix(OURS) if isinstance(given, str) and given.startswith(OURS) else ""


def text_of(name: str, content: Any) -> str:
    """Of a message, a thought, or what a tool gave: a text, or parts. Raises ProblemError."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise refused(name, ": must be a text, or a list of parts", "invalid_type")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in TEXTS:
            texts.append(str(part.get("refusal" if kind == "refusal" else "text") or ""))
        elif kind in NO_TEXTS:
            said = f" = {kind!r}: this model reads text alone; leave it out"
            raise refused(f"{name}[{i}].type", said, "unsupported_value")
        else:
            log_once(SKIPPED, str(kind)[:40])
    return joined(texts)
