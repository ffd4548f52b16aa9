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
    its letters. `continues`: the answer goes on with a text of the prompt; else a text begins with it.
    """

    form: Format | None
    expected: Expected
    in_letters: bool = False
    continues: bool = False

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
            marks = {} if shape.in_letters else writer.marks
            self._feeding = Feeding(writer, marks, tokens, shape.continues)
            self._machine = Machine(shape.form, tokens, shape.expected)
        self._num_tokens = self._num_said = self._num_thought = 0
        self._num_ids = self._num_told = 0
        self.text_tokens: list[range] = []  # of each Text that `add` has returned last: those of the answer

    def add(self, piece: Piece) -> list[Event]:
        """Returns what is certain now."""
        self._num_ids += len(piece.output_ids)
        if self._machine is None:
            self._tell([range(self._num_ids)] if piece.text else [])
            return [Text(piece.text)] if piece.text else []
        events = self._machine.feed(self._feeding.add(piece), bool(piece.finish_reason))
        self._tell([self._feeding.tokens_of(*place) for place in self._machine.text_places])
        self._num_tokens += piece.num_output_tokens or 0
        for event in events:
            if isinstance(event, Thought):
                self._num_thought += len(event.text)
            elif isinstance(event, Text | Arguments):
                self._num_said += len(event.text)
        return events

    @property
    def open_thought(self) -> str:
        """What closes the thought in which the answer is, or was when it ended; empty: it is in none."""
        return self._machine.open_thought if self._machine is not None else ""

    def _tell(self, texts: list[range]) -> None:
        """A token in two of them is the first one's."""
        self.text_tokens = []
        for each in texts:
            self.text_tokens.append(range(max(each.start, self._num_told), each.stop))
            self._num_told = max(self._num_told, each.stop)

    @property
    def num_thought_tokens(self) -> int:
        """An estimate: the thoughts' share of the answer's characters."""
        num_characters = self._num_thought + self._num_said
        return round(self._num_tokens * self._num_thought / num_characters) if num_characters else 0
