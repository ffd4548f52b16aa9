"""Reads one call of a tool, or several in a list, from behind the mark that begins it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from front.parts.events import Events
from front.parts.formats import Format
from front.parts.reading import TOKEN, BrokenError, Came, Reading
from front.parts.tagged import TaggedReader
from front.parts.unquoted import UnquotedReader

NAMES = ("name", "function", "tool")  # of the tool, in an object
ARGUMENTS = ("arguments", "parameters", "input")
LONGEST_HEAD = 600  # characters
LONGEST_NAME = 300
EMPTY = "{}"  # arguments
Form = Callable[[str], str]  # of a mark, as it comes


class CallReader:
    """Reads calls of one format."""

    def __init__(
        self,
        form: Format,
        spell: Form,
        came: Came,
        events: Events,
        schemas: Mapping[str, Any],
        names: Collection[str] | None,
    ) -> None:
        """`schemas`: of the arguments of the tools that there are, by the tools' names. `names`: of the tools
        that may be called; None: all, also those that there are not.
        """
        self._form = form
        self._came = came
        self._events = events
        self._names: Collection[str] | None = schemas if form.is_bare else names
        self._head = re.compile(form.head) if form.head else None
        closes = spell(form.call[1])
        self._ends = closes if len(closes) == 1 and re.fullmatch(f"[{TOKEN}]", closes) else ""
        self._begins = re.compile("[{" + self._ends + "]")
        self._tagged = TaggedReader(form, spell, came, events, schemas, names) if form.tagged else None
        if form.quote:
            self._unquoted = UnquotedReader(spell(form.quote), self._ends, came)
        self._has_name = self._has_arguments = False
        self._held: list[str] = []  # arguments that come before the name

    def read(self) -> Reading[None]:
        """Raises BrokenError, and OverError: `has_begun` says whether there was a name before."""
        self._has_name = False
        if self._tagged is not None:
            yield from self._tagged.read()
            return
        yield from self._came.skip_spaces()
        first = yield from self._came.peek()
        if first == "[":
            yield from self._list()
        elif self._head is None or (first == "{" and not self._form.quote):
            yield from self._object()
        else:
            yield from self._headed(self._head)

    @property
    def has_begun(self) -> bool:
        return self._tagged.has_begun if self._tagged is not None else self._has_name

    def _begin(self, name: str) -> None:
        if self._names is not None and name not in self._names:
            raise BrokenError
        self._has_name = True
        self._came.kept()  # it is a call, whatever comes
        self._events.begin(name)

    def _end(self) -> None:
        self._has_name = False
        self._events.end()
        self._came.keep()

    def _list(self) -> Reading[None]:
        self._came.take(1)
        while True:
            yield from self._came.skip_spaces()
            first = yield from self._came.peek()
            if first == "{":
                yield from self._object()
            elif first in ",]":
                self._came.take(1)
                if first == "]":
                    return
            else:
                raise BrokenError

    def _headed(self, head: re.Pattern[str]) -> Reading[None]:
        written: list[str] = []

        def tell(text: str) -> None:
            written.append(self._came.letters(text))
            if sum(map(len, written)) > LONGEST_HEAD:
                raise BrokenError

        if (yield from self._came.before(self._begins, tell)) != "{":
            raise BrokenError
        found = head.fullmatch("".join(written))
        if found is None:
            raise BrokenError
        self._begin(next(name for name in found.groups() if name))
        if self._form.quote:
            yield from self._unquoted.value(self._events.add)
        else:
            yield from self._came.value(self._events.add, self._ends)
        self._end()

    def _object(self) -> Reading[None]:
        """The name and the arguments are in one object, in any order."""
        self._held, self._has_arguments = [], False
        self._came.take(1)
        is_first = True
        while (yield from self._key(is_first)):
            is_first = False
            key = yield from self._came.decoded(self._ends, LONGEST_NAME)
            yield from self._colon()
            yield from self._member(key, (yield from self._came.peek()))
        if not self._has_name:
            raise BrokenError
        if not self._has_arguments:
            self._events.add(EMPTY)
        self._end()

    def _member(self, key: str, first: str) -> Reading[None]:
        """`first`: the first character of its value."""
        if key in NAMES and first == '"' and not self._has_name:
            self._begin((yield from self._came.decoded(self._ends, LONGEST_NAME)))
            self._events.add("".join(self._held))
        elif key in ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            yield from self._arguments(first)
        elif self._form.is_bare and not self._has_name and key != "type":
            raise BrokenError  # an answer that is an object of another kind
        else:
            yield from self._came.value(_ignore, self._ends)

    def _add(self, text: str) -> None:
        if self._has_name:
            self._events.add(text)
        else:
            self._held.append(text)

    def _key(self, is_first: bool) -> Reading[bool]:
        """Whether another key comes."""
        while True:
            yield from self._came.skip_spaces()
            first = yield from self._came.peek()
            if first == '"':
                return True
            if first not in ",}" or (first == "," and is_first):
                raise BrokenError
            self._came.take(1)
            if first == "}":
                return False

    def _colon(self) -> Reading[None]:
        yield from self._came.skip_spaces()
        if (yield from self._came.peek()) != ":":
            raise BrokenError
        self._came.take(1)
        yield from self._came.skip_spaces()

    def _arguments(self, first: str) -> Reading[None]:
        """An object, or a text with one; nothing, and null, are an empty one."""
        if first == '"':
            self._add((yield from self._came.decoded(self._ends)) or EMPTY)
        elif first == "n":
            written: list[str] = []
            yield from self._came.value(written.append, self._ends)
            text = "".join(written)
            self._add(EMPTY if text == "null" else text)
        else:
            yield from self._came.value(self._add, self._ends)


def _ignore(_text: str) -> None:
    pass
