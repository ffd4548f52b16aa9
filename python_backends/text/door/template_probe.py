"""What a chat template does with messages: it renders chats of probes, contents that no template writes.

A template may leave a message out: most know some roles only, or a role at some places only. Its sender would
not notice. And it writes tokens around the messages (role markers), which tokenizers don't always mark as
special. Owned by the chat template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, cast

from jinja2 import nodes

from python_backends.text.door.chat import Extras
from python_backends.text.door.chat_fields import ROLES
from python_backends.text.longest import longest_of

Roles = tuple[str, ...]
Render = Callable[..., str]  # of messages, and Extras where there are some

CALL = "call"  # in Roles: an assistant that calls a tool
OBJECT, TEXT = "object", "text"  # how a template takes a call's arguments

MAX_KEPT = 64  # messages of a chat whose result is kept
_PROBE = re.compile("qz([0-9]+)x", re.IGNORECASE)
_CHATS: tuple[Roles, ...] = (
    ("user",),
    ("user", "assistant"),
    ("system", "user", "assistant", "user"),
    *((role, "user") for role in ROLES),
    *(("user", role) for role in ROLES),
    *(("user", "assistant", role, "user") for role in ROLES),
    *(("user", "assistant", role) for role in ROLES),
)


class TemplateProbe:
    """Probes one template; `render` may raise anything."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._kept = lru_cache(maxsize=256)(self._left_out)
        self._arguments = lru_cache(maxsize=2)(self._arguments_in)
        self._long_ids = lru_cache(maxsize=2)(self._takes_long_ids)
        self._several = lru_cache(maxsize=2)(self._takes_several_calls)
        self._texts = lru_cache(maxsize=2)(self._writes_texts_of_calls)
        self._whole = lru_cache(maxsize=256)(self._writes_all)

    def left_out(self, roles: Roles, has_tools: bool = False) -> frozenset[int]:
        """Returns the places of the messages that the template leaves out of a chat of these roles."""
        find = self._kept if len(roles) <= MAX_KEPT else self._left_out
        return find(roles, has_tools)

    def writes_all(self, roles: Roles, has_tools: bool = False) -> bool:
        """Whether the template writes every message of a chat of these roles."""
        find = self._whole if len(roles) <= MAX_KEPT else self._writes_all
        return find(roles, has_tools)

    @cached_property
    def known(self) -> list[str]:
        """The roles that the template writes at some place of some chat."""
        written = {roles[place] for roles, prompt in self._prompts.items() for place in _places(prompt)}
        return [role for role in ROLES if role in written]

    def arguments(self, has_tools: bool = False) -> str:
        """How the template takes a call's arguments: OBJECT or TEXT. Empty: it writes no calls."""
        return self._arguments(has_tools)

    def _arguments_in(self, has_tools: bool) -> str:
        for kind in (OBJECT, TEXT):
            messages = [_probe(0, "user"), _probe(1, CALL, kind), _probe(2, "tool")]
            if {1, VALUE} <= _places(self._rendered(messages, has_tools) or ""):
                return kind
        return ""

    def takes_long_ids(self, has_tools: bool = False) -> bool:
        """Whether a call may have any id. Mistral's templates refuse all but nine letters and digits."""
        return self._long_ids(has_tools)

    def _takes_long_ids(self, has_tools: bool) -> bool:
        kind = self.arguments(has_tools)
        messages = [_probe(0, "user"), _probe(1, CALL, kind, LONG_ID), _probe(2, "tool", call_id=LONG_ID)]
        # where no calls are written, no ids are
        return not kind or self._rendered(messages, has_tools) is not None

    def takes_several_calls(self, has_tools: bool = False) -> bool:
        """Whether a message may have several calls. The templates of Llama 3 refuse all but one."""
        return self._several(has_tools)

    def _takes_several_calls(self, has_tools: bool) -> bool:
        kind = self.arguments(has_tools)
        first, second = _probe(1, CALL, kind), _probe(2, CALL, kind)
        both = {**first, "tool_calls": first["tool_calls"] + second["tool_calls"]}
        messages = [_probe(0, "user"), both, _probe(3, "tool"), _probe(4, "tool")]
        return not kind or {1, 2} <= _places(self._rendered(messages, has_tools) or "")

    def writes_texts_of_calls(self, has_tools: bool = False) -> bool:
        """Whether the content of a message with calls gets into the prompt."""
        return self._texts(has_tools)

    def _writes_texts_of_calls(self, has_tools: bool) -> bool:
        kind = self.arguments(has_tools)
        call = {**_probe(1, CALL, kind), "content": f"qz{CONTENT}x"}
        prompt = self._rendered([_probe(0, "user"), call, _probe(2, "tool")], has_tools)
        return not kind or CONTENT in _places(prompt or "")

    @cached_property
    def writes_tools(self) -> bool:
        """Whether the template tells the model which tools there are."""
        return VALUE in _places(self._rendered([_probe(0, "user")], True) or "")

    def prompt(self, roles: Roles, has_tools: bool = False) -> str | None:
        """Returns the prompt of a chat of these roles; None if the template refuses it."""
        arguments = self.arguments(has_tools) if CALL in roles else ""
        return self._rendered([_probe(i, role, arguments) for i, role in enumerate(roles)], has_tools)

    def _rendered(self, messages: list[dict[str, Any]], has_tools: bool) -> str | None:
        try:
            return self._render(messages, WITH_TOOL if has_tools else Extras())
        except Exception:  # a template may raise anything
            return None

    def written(self, texts: Iterable[str]) -> frozenset[str]:
        """Returns those of the texts that the template writes around messages."""
        pattern = longest_of(texts)
        if pattern is None:
            return frozenset()
        return frozenset(chain.from_iterable(map(pattern.findall, self._prompts.values())))

    @cached_property
    def _prompts(self) -> dict[Roles, str]:
        prompts = {roles: self.prompt(roles) for roles in _CHATS}
        return {roles: prompt for roles, prompt in prompts.items() if prompt is not None}

    def _writes_all(self, roles: Roles, has_tools: bool) -> bool:
        prompt = self.prompt(roles, has_tools)
        return prompt is not None and _places(prompt).issuperset(range(len(roles)))

    def _left_out(self, roles: Roles, has_tools: bool) -> frozenset[int]:
        prompt = self.prompt(roles, has_tools)
        return frozenset() if prompt is None else frozenset(range(len(roles))) - _places(prompt)


# the probes in a call's arguments, and in the content of its message: no chat is so long
VALUE, CONTENT = 1_000_000, 1_000_001
_SCHEMA = {"parameters": {"type": "object", "properties": {}, "required": []}}
_TOOL = {"type": "function", "function": {"name": f"qz{VALUE}x", "description": "", **_SCHEMA}}
WITH_TOOL = Extras(tools=(_TOOL,))
ID, LONG_ID = "call00000", "call_0000000000"  # of calls


def _probe(i: int, role: str, arguments: str = "", call_id: str = ID) -> dict[str, Any]:
    """The message at place i. `arguments`: how those of a call are written; empty: as nothing."""
    if role == "tool":
        return {"role": role, "content": f"qz{i}x", "tool_call_id": call_id, "name": "tool"}
    if role != CALL:
        return {"role": role, "content": f"qz{i}x"}
    given: Any = {"value": f"qz{VALUE}x"}
    function = {"name": f"qz{i}x", "arguments": json.dumps(given) if arguments == TEXT else given}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _places(prompt: str) -> set[int]:
    """Returns the places of the messages whose probes are in the prompt."""
    return {int(place) for place in _PROBE.findall(prompt)}


def searched(template: nodes.Template) -> Iterator[str]:
    """Yields the texts that the template looks for in other texts: contents may have these."""
    for node in template.find_all((nodes.Compare, nodes.Call, nodes.Filter, nodes.Test)):
        for place in _read(node):
            constants = [place] if isinstance(place, nodes.Const) else place.find_all(nodes.Const)
            yield from (each.value for each in constants if isinstance(each.value, str))


def _read(node: nodes.Node) -> Sequence[nodes.Node]:
    """Returns the parts of an expression that are only read."""
    if isinstance(node, nodes.Compare):
        return [node]
    writes = isinstance(node, nodes.Call) and not isinstance(node.node, nodes.Getattr)  # a macro does
    return [] if writes else cast(nodes.Filter, node).args
