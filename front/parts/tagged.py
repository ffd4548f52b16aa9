"""Reads arguments that stand one by one between tags, as Qwen3-Coder and GLM write them, and makes JSON of
them. What a tool's schema calls a string is one, whatever it looks like, but for null where it may be null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from front.parts.events import Events
from front.parts.formats import Format
from front.parts.reading import BrokenError, Came, Markers, OverError, Reading, as_json

LONGEST_HEAD = 600


class TaggedReader:
    """Reads one call from behind the mark that begins it."""

    def __init__(
        self,
        form: Format,
        spell: Callable[[str], str],
        came: Came,
        events: Events,
        schemas: Mapping[str, Any],
        names: Collection[str] | None,
    ) -> None:
        """`names`: of the tools that may be called; None: all."""
        assert form.tagged is not None
        tagged, self._came, self._events, self._schemas = form.tagged, came, events, schemas
        self._names = names
        self._head = re.compile(form.head)
        self._opens = spell(tagged.name[0])
        self._ends = tuple(filter(None, (spell(tagged.end), spell(form.call[1]))))
        self._next = Markers((self._opens, *self._ends))
        self._name_ends = Markers((spell(tagged.name[1]),))
        self._value = spell(tagged.value[0])
        self._value_ends = Markers((spell(tagged.value[1]),))
        self.has_begun = False

    def read(self) -> Reading[None]:
        """Raises BrokenError, OverError."""
        self.has_begun = False
        mark, head = yield from self._text(self._next, LONGEST_HEAD)
        found = re.fullmatch(self._head, head)
        if found is None or (self._names is not None and found["name"] not in self._names):
            raise BrokenError
        self.has_begun = True
        self._came.kept()
        name, is_first = found["name"], True
        self._events.begin(name)
        while mark == self._opens:
            yield from self._argument(name, is_first)
            is_first = False
            mark, _between = yield from self._text(self._next, 0)
        self._events.add("{}" if is_first else "}")
        self._events.end()
        self._came.keep()
        self.has_begun = False

    def _text(self, ends: Markers, longest: int) -> Reading[tuple[str, str]]:
        """Returns the mark, and what stands before it. Raises BrokenError if that is too long (0: any)."""
        pieces: list[str] = []

        def tell(text: str) -> None:
            pieces.append(text)
            if longest and sum(map(len, pieces)) > longest:
                raise BrokenError

        mark = yield from self._came.until(ends, tell)
        if not mark:
            raise OverError
        return mark, "".join(pieces)

    def _argument(self, tool: str, is_first: bool) -> Reading[None]:
        _mark, name = yield from self._text(self._name_ends, LONGEST_HEAD)
        name = name.strip()
        if self._value:
            yield from self._came.skip_spaces()
            yield from self._came.starts(self._value)
        self._events.add(("{" if is_first else ", ") + as_json(name) + ": ")
        types = _types(_property(self._schemas.get(tool), name))
        if types == {"string"}:
            yield from self._string()
            return
        _mark, text = yield from self._text(self._value_ends, 0)
        text = _trimmed(text)
        is_text = types == {"string", "null"} and text.strip() != "null"
        self._events.add(as_json(text) if is_text else _value(text))

    def _string(self) -> Reading[None]:
        """A string is passed on as it comes, without the line breaks around it."""
        self._events.add('"')
        held, has_begun = "", False

        def tell(text: str) -> None:
            nonlocal held, has_begun
            if not has_begun:
                text, has_begun = text.removeprefix("\n"), True
            text = held + text
            held = "\n" if text.endswith("\n") else ""
            self._events.add(as_json(text[: len(text) - len(held)])[1:-1])

        if not (yield from self._came.until(self._value_ends, tell)):
            raise OverError
        self._events.add('"')


def _property(schema: Any, name: str) -> Any:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(name) if isinstance(properties, Mapping) else None


def _types(schema: Any) -> set[Any]:
    """Returns the types that a value may have; empty where the schema does not name them at its beginning."""
    if not isinstance(schema, Mapping):
        return set()
    either = schema.get("anyOf")  # as pydantic writes what is optional
    named = [_named(each) for each in (either if isinstance(either, list) else [schema])]
    return {name for names in named for name in names} if all(named) else set()


def _named(schema: Any) -> set[Any]:
    named = schema.get("type") if isinstance(schema, Mapping) else None
    return {each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)}


def _trimmed(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def _value(text: str) -> str:
    """As JSON; a text if it is none."""
    try:
        json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return as_json(text)
    return text.strip()


def _no_number(name: str) -> float:
    """NaN and Infinity are no JSON."""
    raise ValueError(name)
