"""The jinja environment in which chat templates run. Neither the checkpoint nor the messages are trusted.

It is jinja's sandbox, which allows no private attributes and no changes to what a template is given, under a
budget for each rendering: turns of all loops and macros together, and characters and list items that all of
its operations read or make. Every operation is charged to the budget before it runs. Filters and methods that
make large output from small input, and that templates of checkpoints don't need, are removed. Called by the
chat template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any, cast

from jinja2 import Environment, TemplateError, TemplateSyntaxError, Undefined, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_TURNS = 100_000  # of all loops and macros of one rendering together: a fraction of a second
MAX_WORK = 16_000_000  # characters and items that one rendering reads and makes
WORK_PER_INPUT = 32  # added to MAX_WORK for each character of the messages
MAX_PRODUCT = 1_000_000  # how long a text, list or power may grow in one operation
MAX_MARGIN = 64  # characters of an indentation or a separator
NUMBER_CHARS, OTHER_CHARS = 25, 100

# only read their input
FREE = frozenset({"abs", "count", "d", "default", "first", "float", "int", "last", "length", "round"})
BY_CHARACTERS = frozenset(
    {"capitalize", "e", "escape", "lower", "safe", "string", "title", "trim", "truncate", "upper"}
)
BY_ITEMS = frozenset(
    {"dictsort", "groupby", "items", "list", "map", "max", "min", "reject", "rejectattr", "reverse", "select"}
)
BY_ITEMS |= {"selectattr", "sort", "unique"}
FROM_THE_RIGHT = frozenset({"rfind", "rpartition", "rsplit"})
STR_METHODS = frozenset({"capitalize", "casefold", "count", "endswith", "find", "index", "isalnum"})
STR_METHODS |= {"isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle"}
STR_METHODS |= {"isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix"}
STR_METHODS |= {"replace", "rfind", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith"}
STR_METHODS |= {"strip", "swapcase", "title", "upper"}
_METHODS: Mapping[type, frozenset[str]] = {
    str: STR_METHODS,
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"get", "items", "keys", "values"}),
    int: frozenset(),
    float: frozenset(),
    bytes: frozenset(),
}


class _Budget:
    def __init__(self, num_chars: int, now: datetime) -> None:
        self.now = now
        self.turns = MAX_TURNS
        self.work = MAX_WORK + WORK_PER_INPUT * num_chars


_budget: ContextVar[_Budget] = ContextVar("budget")


def begin_rendering(num_chars: int, now: datetime) -> None:
    """Gives this thread's next rendering, of messages with this many characters, its budget and its time."""
    _budget.set(_Budget(num_chars, now))


def environment() -> Environment:
    made = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_printed
    )
    made.filters = {name: _filter(name, function) for name, function in FILTERS.items()}
    made.filters.update(tojson=_tojson, join=_joined, replace=_replaced, indent=_indented)
    made.filters.update(counted=_counted, concatenated=_concatenated, sliced=_sliced, searched=_searched)
    made.globals.pop("lipsum")
    made.globals.update(raise_exception=_raise, strftime_now=_now, namespace=_Namespace)
    return made


class _Sandbox(ImmutableSandboxedEnvironment):
    """Every operation that could take long, or make something long, is charged to the budget first."""

    intercepted_binops = frozenset({"+", "%", "*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            if loop.recursive:
                raise TemplateSyntaxError("recursive loops are not supported", loop.lineno)
            loop.iter = _charge("counted", loop.iter, nodes.Const(_num_letters(loop)))
        for macro in template.find_all(nodes.Macro):
            one_turn = _charge(
                "counted", nodes.Const((None,), lineno=macro.lineno), nodes.Const(_num_letters(macro))
            )
            macro.body.insert(0, nodes.ExprStmt(one_turn, lineno=macro.lineno))
        return cast(nodes.Template, _Charges().visit(template))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _spend(_length(left) + _length(right))
        elif operator == "%" and isinstance(left, str):
            raise TemplateError("texts are not formatted with %")
        elif operator in ("*", "**"):
            _spend(_product(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        allowed = next((names for kind, names in _METHODS.items() if isinstance(obj, kind)), None)
        named = getattr(type(obj), "_fields", ()) if isinstance(obj, tuple) else ()  # as `groupby` makes them
        return (allowed is None or attr in allowed or attr in named) and super().is_safe_attribute(
            obj, attr, value
        )

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Jinja's own would print nothing, silently."""
        raise TemplateError(f"it uses {attribute!r} of a {type(obj).__name__}, which is not supported")

    def wrap_str_format(self, value: Any) -> None:
        """Does nothing: str.format is not allowed."""

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (jinja's own signature)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            if __obj.__name__ == "join" and args:
                args = (list(args[0]),)  # it may be a generator
            _spend(_method_size(__obj.__name__, owner, args))
        return super().call(__context, __obj, *args, **kwargs)


class _Charges(NodeTransformer):
    """Inserts a filter that charges the budget before operations that have no hook in jinja."""

    def visit_Add(self, node: nodes.Add, *_args: Any) -> nodes.Node:  # noqa: N802 (jinja's own name)
        """Joins constant texts, as jinja does where `+` has no hook: long ones are written in many pieces."""
        self.generic_visit(node)
        sides = [side.value for side in (node.left, node.right) if isinstance(side, nodes.Const)]
        texts = [side for side in sides if isinstance(side, str)]
        return nodes.Const("".join(texts), lineno=node.lineno) if len(texts) == 2 else node

    def visit_Concat(self, node: nodes.Concat, *_args: Any) -> nodes.Node:  # noqa: N802 (jinja's own name)
        self.generic_visit(node)
        return _charge("concatenated", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Getitem(self, node: nodes.Getitem, *_args: Any) -> nodes.Node:  # noqa: N802 (jinja's own name)
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        none = nodes.Const(None, lineno=node.lineno)
        return _charge(
            "sliced", node.node, *(part or none for part in (node.arg.start, node.arg.stop, node.arg.step))
        )

    def visit_Operand(self, node: nodes.Operand, *_args: Any) -> nodes.Node:  # noqa: N802 (jinja's own name)
        self.generic_visit(node)
        if node.op in ("in", "notin"):
            node.expr = _charge("searched", node.expr)
        return node


class _Generation(Extension):
    """`{% generation %}` marks what a training run learns from; it does not change a prompt."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


class _Namespace(Namespace):
    """Names with an underscore are refused: through them a template could reach the interpreter."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateError(f"a namespace can't have {name!r}")
        super().__setitem__(name, value)


def _charge(name: str, value: nodes.Node, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, value), name, list(arguments), [], None, None, lineno=value.lineno)


def _num_letters(body: nodes.Node) -> int:
    """Returns how many characters of plain text each turn writes."""
    return sum(len(data.data) for data in body.find_all(nodes.TemplateData))


# --- charges


def _spend(size: int) -> None:
    budget = _budget.get()
    budget.work -= size
    if budget.work < 0:
        raise TemplateError(
            f"it works on more than {MAX_WORK} characters, and {WORK_PER_INPUT} for each of the messages"
        )


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict | range) else 0


def _size(value: Any) -> int:
    """Returns about how many characters it has as text. Charges for the items of lists, because one list may
    contain another many times.
    """
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple):
        _spend(len(value))
        return sum(2 + _size(item) for item in value)
    if isinstance(value, dict):
        _spend(len(value))
        return sum(6 + _size(key) + _size(item) for key, item in value.items())
    if isinstance(value, int):
        return NUMBER_CHARS + value.bit_length() // 3
    return NUMBER_CHARS if isinstance(value, float) else OTHER_CHARS


def _product(operator: str, left: Any, right: Any) -> int:
    sizes = [len(side) if hasattr(side, "__len__") else abs(side) for side in (left, right)]
    if operator == "**":
        too_big, size = sizes[0] > MAX_PRODUCT or sizes[1] > 64, 0
    else:
        are_numbers = isinstance(left, int | float) and isinstance(right, int | float)
        product = sizes[0] * sizes[1]
        too_big, size = (
            product > (1 << 63 if are_numbers else MAX_PRODUCT),
            0 if are_numbers else int(product),
        )
    if too_big:
        raise TemplateError(f"{operator} makes something too big")
    return size


def _method_size(name: str, text: str, args: tuple[Any, ...]) -> int:
    if name == "join" and args:
        return _size(args[0]) + len(text) * _length(args[0])
    if name == "replace" and len(args) > 1:
        return _replaced_size(text, args[0], args[1])
    if name in FROM_THE_RIGHT and args:
        return len(text) * (1 + _length(args[0]))  # Python's search from the right takes that long
    return len(text) + sum(map(_length, args))


def _replaced_size(text: str, old: Any, new: Any) -> int:
    old, new = str(old), str(new)
    return len(text) + (text.count(old) if old else len(text) + 1) * len(new)


# --- filters


def _filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns jinja's filter, charged before it runs; or one that raises an error, because the filter is not
    allowed.
    """
    if name in FREE:
        return function
    if name in BY_CHARACTERS:
        return _paying(function, _size)
    return _paying(function, _length) if name in BY_ITEMS else _missing(name)


def _paying(function: Callable[..., Any], size: Callable[[Any], int]) -> Callable[..., Any]:
    @wraps(function)  # also copies jinja's mark of a first argument that is not a value
    def paying(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if isinstance(arg, str | list | tuple | dict):
                _spend(size(arg))
        return function(*args, **kwargs)

    return paying


def _missing(name: str) -> Callable[..., Any]:
    def missing(*_args: Any, **_kwargs: Any) -> Any:
        raise TemplateError(f"it uses the filter {name!r}, which is not supported")

    return missing


@pass_context  # so that jinja doesn't compute it when it compiles; the same below
def _counted(_context: Any, items: Iterable[Any], num_letters: int) -> list[Any]:
    if isinstance(items, str):
        _spend(len(items))
    counted = list(items)
    budget = _budget.get()
    budget.turns -= len(counted)
    if budget.turns < 0:
        raise TemplateError(f"its loops take more than {MAX_TURNS} turns")
    _spend(len(counted) * num_letters)
    return counted


@pass_context
def _concatenated(_context: Any, items: list[Any]) -> str:
    _spend(_size(items))
    return "".join(map(str, items))


@pass_context
def _sliced(_context: Any, value: Any, start: Any, stop: Any, step: Any) -> Any:
    _spend(_length(value))
    return value[start:stop:step]


@pass_context
def _searched(_context: Any, value: Any) -> Any:
    _spend(_length(value))
    return value


@pass_context
def _joined(_context: Any, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    items = list(value)
    _spend(_size(items) + len(str(d)) * len(items))
    return cast(str, FILTERS["join"](_context.eval_ctx, items, d, attribute))


@pass_context
def _replaced(_context: Any, text: Any, old: str, new: str, count: int | None = None) -> str:
    _spend(_size(text))
    _spend(_replaced_size(str(text), old, new))
    return cast(str, FILTERS["replace"](_context.eval_ctx, text, old, new, count))


@pass_context
def _indented(
    _context: Any, text: Any, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    margin = width if isinstance(width, int) else len(width)
    if margin > MAX_MARGIN:
        raise TemplateError(f"it indents by {margin} characters")
    _spend(_size(text))
    _spend(str(text).count("\n") * margin)
    return cast(str, FILTERS["indent"](str(text), width, first, blank))


@pass_context
def _tojson(_context: Any, value: Any, **layout: Any) -> str:
    """Returns `value` as JSON, without jinja's escapes for HTML."""
    margins = [layout.get("indent") or 0, *(layout.get("separators") or ())]
    if any((margin if isinstance(margin, int) else len(margin)) > MAX_MARGIN for margin in margins):
        raise TemplateError("its JSON has too much white space")
    _spend(_size(value))
    return json.dumps(value, **{"ensure_ascii": False, **layout})


def _printed(value: Any) -> Any:
    _spend(_size(value))
    return value


# --- functions


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(layout: str) -> str:
    if len(layout) > OTHER_CHARS or re.search(r"%\W*\d", layout):
        raise TemplateError("its date has widths, or is too long")
    return _budget.get().now.strftime(layout)
