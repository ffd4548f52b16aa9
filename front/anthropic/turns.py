"""Reads a conversation as Anthropic's clients write it: messages with blocks, and the system beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from front.anthropic.asks import Content, CountAsk, Message
from front.errors import ProblemError, refused
from front.log_once import log_once
from python_backends.text.door.turns import Call, Turn, joined

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "ctx": "user", "msg": "user"}
# Claude Code begins its system with this line, whose end changes with each request: it would keep every
# prompt from having the beginning of the one before
HEADER = re.compile(r"\s*x-anthropic-billing-header:(?:[ \t]*[\w-]+=[^;\n]*;?)*\s*")
PICTURES = ("image", "document")
IS_ERROR = "Error: "  # before what a tool says that failed


def turns_of(ask: CountAsk) -> list[Turn]:
    """Raises ProblemError."""
    if not ask.messages:
        raise refused("messages", ": must have at least one message")
    system = _text("system", ask.system) if ask.system else ""
    if header := HEADER.match(system):
        system = system[header.end() :]
    turns = [Turn("system", system)] if system else []
    for i, message in enumerate(ask.messages):
        turns += _turns(f"messages[{i}]", message)
    if not turns:
        raise refused("messages", ": must have a text")
    return turns


def _turns(name: str, message: Message) -> Iterator[Turn]:
    role = ROLES.get(message.role)
    if role is None:
        raise refused(f"{name}.role", f" = {message.role[:40]!r}: must be one of {', '.join(ROLES)}")
    blocks = _blocks(message.content)
    if role == "assistant":
        yield _answer(f"{name}.content", blocks)
        return
    texts: list[str] = []
    for i, block in enumerate(blocks):
        if block.get("type") == "tool_result":
            if texts:
                yield Turn(role, joined(texts))
                texts = []
            yield _result(f"{name}.content[{i}]", block)
        elif (text := _said(f"{name}.content[{i}]", block)) is not None:
            texts.append(text)
    if texts:
        yield Turn(role, joined(texts))


def _answer(name: str, blocks: list[dict[str, Any]]) -> Turn:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        if block.get("type") == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif block.get("type") == "tool_use":
            calls.append(
                Call(str(block.get("id") or ""), str(block.get("name") or ""), block.get("input") or {})
            )
        elif (text := _said(f"{name}[{i}]", block)) is not None:
            texts.append(text)
    return Turn("assistant", joined(texts), tuple(calls), thought=joined(thoughts))


def _result(name: str, block: dict[str, Any]) -> Turn:
    said = _text(f"{name}.content", block.get("content"))
    return Turn(
        "tool",
        IS_ERROR + said if block.get("is_error") else said,
        call_id=str(block.get("tool_use_id") or ""),
    )


def _text(name: str, content: Any) -> str:
    said = (_said(f"{name}[{i}]", block) for i, block in enumerate(_blocks(content)))
    return joined([text for text in said if text is not None])


def _blocks(content: Content | None) -> list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content or ""}]
    return [block for block in content if isinstance(block, dict)]


def _said(name: str, block: dict[str, Any]) -> str | None:
    """Returns the block's text; None of one that is skipped. Raises ProblemError."""
    kind, text = block.get("type"), block.get("text")
    if kind == "text" or (kind is None and isinstance(text, str)):
        if not isinstance(text, str):
            raise refused(f"{name}.text", ": must be a text", "invalid_type")
        return text
    if (
        kind == "document"
        and isinstance(source := block.get("source"), dict)
        and source.get("type") == "text"
    ):
        return str(source.get("data") or "")
    if kind in PICTURES:
        raise _no_picture(name, str(kind))
    log_once("skipped: blocks of the type %r", str(kind)[:40])
    return None


def _no_picture(name: str, kind: str) -> ProblemError:
    said = f" = {kind!r}: this model reads text alone; leave it out"
    return refused(f"{name}.type", said, "unsupported_value")
