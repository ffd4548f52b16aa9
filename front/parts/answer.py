"""The parts of one answer, from the pieces in which it comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from client.wire import Piece
from front.parts.events import Arguments, Event, Text, Thought
from front.parts.feeding import Feeding, Vocabulary
from front.parts.formats import Format
from front.parts.machine import Expected, Machine, Tokens


class Writer(Vocabulary, Protocol):
    """A model that answers."""

    @property
    def marks(self) -> Mapping[int, str]:
        """The tokens that are marks, with their texts."""
        ...

    @property
    def mark_tokens(self) -> Tokens:
        """The same for the machine."""
        ...


@dataclass(frozen=True, slots=True)
class Shape:
    """How one answer is read. `in_letters`: marks count as letters, because a guide can't tell a token from
    its letters.
    """

    form: Format | None
    expected: Expected
    in_letters: bool = False

    @property
    def has_parts(self) -> bool:
        """Whether the answer may be more than a text: then it is asked for with its tokens."""
        form = self.form
        return form is not None and bool(form.thoughts or form.has_channels or self.expected.schemas)


class Parts:
    """Reads one answer."""

    def __init__(self, writer: Writer, shape: Shape) -> None:
        self._machine: Machine | None = None
        if shape.has_parts:
            assert shape.form is not None
            tokens = Tokens() if shape.in_letters else writer.mark_tokens
            self._feeding = Feeding(writer, {} if shape.in_letters else writer.marks, tokens)
            self._machine = Machine(shape.form, tokens, shape.expected)
        self._num_tokens = self._num_said = self._num_thought = 0

    def add(self, piece: Piece) -> list[Event]:
        """Returns what is certain now."""
        if self._machine is None:
            return [Text(piece.text)] if piece.text else []
        events = self._machine.feed(self._feeding.add(piece), bool(piece.finish_reason))
        self._num_tokens += piece.num_output_tokens or 0
        for event in events:
            if isinstance(event, Thought):
                self._num_thought += len(event.text)
            elif isinstance(event, Text | Arguments):
                self._num_said += len(event.text)
        return events

    @property
    def num_thought_tokens(self) -> int:
        """An estimate: the thoughts' share of the answer's characters."""
        num_characters = self._num_thought + self._num_said
        return round(self._num_tokens * self._num_thought / num_characters) if num_characters else 0
