"""The parts of one answer, from the pieces in which it comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from client.wire import Piece
from front.parts.events import Event, Text
from front.parts.feeding import Feeding, Vocabulary
from front.parts.formats import Format
from front.parts.machine import Expected, Machine, Tokens


class Writer(Vocabulary, Protocol):
    """A model that answers."""

    @property
    def form(self) -> Format | None:
        """How it writes; None: text alone."""
        ...

    @property
    def marks(self) -> Mapping[int, str]:
        """The tokens that are marks, with their texts."""
        ...

    @property
    def mark_tokens(self) -> Tokens:
        """The same for the machine."""
        ...


def has_parts(writer: Writer, expected: Expected) -> bool:
    """Whether an answer may be more than a text: then it is asked for with its tokens."""
    form = writer.form
    return form is not None and bool(form.thoughts or form.has_channels or expected.schemas)


class Parts:
    """Reads one answer."""

    def __init__(self, writer: Writer, expected: Expected) -> None:
        self._machine: Machine | None = None
        if has_parts(writer, expected):
            assert writer.form is not None
            self._feeding = Feeding(writer, writer.marks, writer.mark_tokens)
            self._machine = Machine(writer.form, writer.mark_tokens, expected)

    def add(self, piece: Piece) -> list[Event]:
        """Returns what is certain now."""
        if self._machine is None:
            return [Text(piece.text)] if piece.text else []
        return self._machine.feed(self._feeding.add(piece), bool(piece.finish_reason))


def open_thought(form: Format | None, ending: str) -> str:
    """Returns what closes the thought that `ending`, the end of a prompt, leaves open; empty: none."""
    for opens, closes in form.thoughts if form is not None else ():
        if ending.rfind(opens.strip()) > ending.rfind(closes):
            return closes
    return ""


def schemas_of(tools: Any) -> dict[str, Any]:
    """Returns the schemas of the arguments of functions, by the functions' names."""
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
