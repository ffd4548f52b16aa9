"""Makes a conversation fit the model's chat template: many templates know no tools, or a system message at
the beginning only. What a template would leave out or refuse is written in another role, at its own place, so
that the beginnings of two prompts of one conversation stay the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from python_backends.text.door.chat import Message
from python_backends.text.door.chat_template import ChatTemplate
from python_backends.text.door.turns import Turn

MAX_TURNS = 4096  # of a longer chat nothing is changed: the ensemble says what its template leaves out
BETWEEN = "\n\n"  # two messages that became one
SHORT_ID = re.compile("[A-Za-z0-9]{9}")  # of a call, as Mistral's templates want it


def fitted(turns: Sequence[Turn], template: ChatTemplate | None, has_tools: bool) -> list[Message]:
    """Returns the messages for the ensemble, which is asked with tools or without."""
    plain = list(turns)
    has_tools = has_tools and template is not None and template.probe.writes_tools
    if template is None or not template.probe.arguments(has_tools):
        plain = [_with_calls_as_text(turn) for turn in plain]
    if template is not None and len(plain) <= MAX_TURNS:
        plain = _taken(plain, template, has_tools)
    if template is not None and not template.probe.takes_long_ids(has_tools):
        plain = [_with_short_ids(turn) for turn in plain]
    names = {call.id: call.name for turn in plain for call in turn.calls}
    return [_message(turn, names) for turn in plain]


def _message(turn: Turn, names: Mapping[str, str]) -> Message:
    """`names`: of the tools that were called, by the call's id."""
    made: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
    if turn.role == "assistant" and turn.thought:
        made["reasoning_content"] = turn.thought
    if turn.role == "tool" and turn.call_id in names:
        made |= {"tool_call_id": turn.call_id, "name": names[turn.call_id]}
    return made


def _taken(turns: list[Turn], template: ChatTemplate, has_tools: bool) -> list[Turn]:
    """With texts and calls in messages of their own where the template takes them so alone."""
    probe = template.probe
    if probe.writes_texts_of_calls(has_tools):
        turns = _written(turns, template, has_tools)
    else:
        turns = _written([part for turn in turns for part in _text_apart(turn)], template, has_tools)
        # those that became one message again, because roles have to alternate
        turns = [replace(turn, content="") if turn.calls else turn for turn in turns]
    return turns if probe.takes_several_calls(has_tools) else _with_one_call_each(turns)


def _text_apart(turn: Turn) -> list[Turn]:
    if not turn.calls or not turn.content.strip():
        return [turn]
    return [replace(turn, calls=()), Turn(turn.role, calls=turn.calls)]


def _with_one_call_each(turns: list[Turn]) -> list[Turn]:
    """Each call stands before what it gave."""
    groups: list[list[Turn]] = [[]]  # a call and what it gave, or another turn
    of_call: dict[str, list[Turn]] = {}
    for turn in turns:
        if turn.role == "tool":
            of_call.get(turn.call_id, groups[-1]).append(turn)
            continue
        others = [[Turn(turn.role, calls=(call,))] for call in turn.calls[1:]]
        parts = [[replace(turn, calls=turn.calls[:1])], *others]
        of_call = {call.id: part for part in parts for call in part[0].calls}
        groups += parts
    return [turn for group in groups for turn in group]


def _written(turns: list[Turn], template: ChatTemplate, has_tools: bool) -> list[Turn]:
    """Changes no more than it takes until the template writes all turns; nothing if it never does."""
    for changes in WAYS:
        changed = turns
        for change in changes:
            changed = change(changed)
        if template.probe.writes_all(_kinds(changed), has_tools):
            return changed
    return turns


def _kinds(turns: Sequence[Turn]) -> tuple[str, ...]:
    return tuple(turn.kind for turn in turns)


def _with_calls_as_text(turn: Turn) -> Turn:
    texts = [turn.content] if turn.content else []
    return replace(turn, content="\n".join([*texts, *(call.text for call in turn.calls)]), calls=())


def _with_short_ids(turn: Turn) -> Turn:
    calls = tuple(replace(call, id=_short(call.id)) for call in turn.calls)
    return replace(turn, calls=calls, call_id=_short(turn.call_id))


def _short(call_id: str) -> str:
    """The same of a call and of what it gave, and in each request."""
    if SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _late_system_as_user(turns: list[Turn]) -> list[Turn]:
    return [_as_user(turn, "system") if i else turn for i, turn in enumerate(turns)]


def _calls_as_text(turns: list[Turn]) -> list[Turn]:
    return [_with_calls_as_text(turn) for turn in turns]


def _tools_as_user(turns: list[Turn]) -> list[Turn]:
    return [_as_user(turn, "tool") for turn in turns]


def _as_user(turn: Turn, role: str) -> Turn:
    return replace(turn, role="user") if turn.role == role else turn


def _merged(turns: list[Turn]) -> list[Turn]:
    """Users' and assistants' turns take turns. Those of tools stay: each belongs to one call."""
    merged: list[Turn] = []
    for role, several in groupby(turns, lambda turn: turn.role):
        if role == "tool":
            merged += several
            continue
        first, *others = several
        content = BETWEEN.join(turn.content for turn in (first, *others) if turn.content)
        calls = tuple(call for turn in (first, *others) for call in turn.calls)
        merged.append(replace(first, content=content, calls=calls))
    return merged


def _without_system(turns: list[Turn]) -> list[Turn]:
    """The first message begins with the system's."""
    if len(turns) < 2 or turns[0].role != "system":
        return turns
    system, first, *others = turns
    return [replace(first, content=BETWEEN.join((system.content, first.content))), *others]


# the less is changed, the earlier; tools' turns become the user's only where the template has no such turns
WAYS: tuple[tuple[Callable[[list[Turn]], list[Turn]], ...], ...] = (
    (),
    (_late_system_as_user,),
    (_late_system_as_user, _merged),
    (_late_system_as_user, _merged, _without_system),
    (_late_system_as_user, _tools_as_user),
    (_late_system_as_user, _tools_as_user, _merged),
    (_late_system_as_user, _tools_as_user, _merged, _without_system),
    (_late_system_as_user, _calls_as_text, _tools_as_user, _merged),
    (_late_system_as_user, _calls_as_text, _tools_as_user, _merged, _without_system),
)
