"""Chat messages to one prompt, with the model's own jinja template, as transformers renders it.

The template comes with the checkpoint and the messages from anywhere: both run in jinja's sandbox, which allows no private
attributes and no changes to what they are given, under a budget of loop turns and of output. Called by the door.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, cast

from jinja2 import Environment, TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from python_backends.request import RefusedError
from python_backends.text.checkpoint import CheckpointError
from python_backends.text.special_tokens import Guard, SpecialTokens

Message = Mapping[str, str]

MAX_TURNS = 200_000  # of all loops and macros of one rendering together: a fraction of a second
MAX_PRODUCT = 1_000_000  # how long a text, list or power may grow at one blow
OUTPUT_PER_INPUT = 4  # a prompt is about as long as its messages, and has a frame
MAX_FRAME = 1_000_000
MAX_REASON = 500  # characters of a template's complaint

_turns_left: ContextVar[int] = ContextVar("turns_left")


class ChatTemplate:
    """Compiled once; `render` may be called from any thread."""

    def __init__(self, source: str, named_tokens: Mapping[str, str], special: SpecialTokens) -> None:
        """Raises CheckpointError."""
        self._named_tokens = dict(named_tokens)
        self._special = special
        try:
            environment = _environment()
            compared = environment.parse(source).find_all(nodes.Const)
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CheckpointError(f"the chat template can't be used: {error}") from error
        self._kept = special.comparable(node.value for node in compared if isinstance(node.value, str))

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt up to where the assistant speaks, its special tokens spelled as meant. Raises RefusedError."""
        contents = [message["content"] for message in messages]
        guard = self._special.guard(contents)
        rendered = self._rendered(messages, guard, self._kept)
        if self._kept is not None and any(map(self._kept.search, contents)):
            others = self._special.among(self._rendered(messages, guard, None))
            if others != self._special.among(rendered):
                raise RefusedError("messages: the model's chat template would make special tokens of parts of their contents")
        return guard.arm(rendered)

    def _rendered(self, messages: Sequence[Message], guard: Guard, kept: re.Pattern[str] | None) -> str:
        disarmed = [{**message, "content": guard.disarm(message["content"], kept)} for message in messages]
        limit = MAX_FRAME + OUTPUT_PER_INPUT * sum(len(message["content"]) for message in disarmed)
        _turns_left.set(MAX_TURNS)
        try:
            return _bounded(self._stream(disarmed), limit)
        except Exception as error:  # what a template raises over messages that it doesn't like is the client's to know
            reason = self._special.readable(guard.typed(str(error)))[:MAX_REASON]
            raise RefusedError(f"messages: the model's chat template can't render them: {reason}") from error

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        return self._template.generate(messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._named_tokens)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Counts the turns of every loop and the calls of every macro, and lets nothing be multiplied without measure."""

    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            if loop.recursive:
                raise TemplateSyntaxError("recursive loops are not supported", loop.lineno)
            loop.iter = _count(loop.iter, loop.lineno)
        for macro in template.find_all(nodes.Macro):
            one_turn = _count(nodes.Const((None,)), macro.lineno)
            macro.body.insert(0, nodes.ExprStmt(one_turn, lineno=macro.lineno))
        return template

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _is_excessive(operator, left, right):
            raise TemplateError(f"{operator} makes something too big")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}` marks what a training run learns from; to a prompt it says nothing."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


class _Namespace(Namespace):
    """No underscore names: they lead into the interpreter."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateError(f"a namespace can't have {name!r}")
        super().__setitem__(name, value)


def _environment() -> Environment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters.update(tojson=_tojson, counted=_counted)
    environment.globals.update(raise_exception=_raise, strftime_now=_now, namespace=_Namespace)
    return environment


def _count(items: nodes.Node, lineno: int) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, items), "counted", [], [], None, None, lineno=lineno)


@pass_context  # so that jinja doesn't work it out beforehand
def _counted(_context: Context, items: Iterable[Any]) -> list[Any]:
    counted = list(items)
    left = _turns_left.get() - len(counted)
    _turns_left.set(left)
    if left < 0:
        raise TemplateError(f"its loops take more than {MAX_TURNS} turns")
    return counted


def _is_excessive(operator: str, left: Any, right: Any) -> bool:
    sizes = [len(side) if hasattr(side, "__len__") else abs(side) for side in (left, right)]
    if operator == "**":
        return bool(sizes[0] > MAX_PRODUCT or sizes[1] > 64)
    are_numbers = isinstance(left, int | float) and isinstance(right, int | float)
    return bool(sizes[0] * sizes[1] > (1 << 63 if are_numbers else MAX_PRODUCT))


def _bounded(pieces: Iterable[str], limit: int) -> str:
    taken, length = [], 0
    for piece in pieces:
        taken.append(piece)
        length += len(piece)
        if length > limit:
            raise TemplateError(f"it writes more than {limit} characters")
    return "".join(taken)


def _tojson(value: Any, **layout: Any) -> str:
    """Without jinja's escapes for HTML."""
    return json.dumps(value, **{"ensure_ascii": False, **layout})


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)
