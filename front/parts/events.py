"""What an answer has, in its order. Texts come in pieces: those that follow each other belong together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Thought(NamedTuple):
    """A piece of a thought."""

    text: str


class Text(NamedTuple):
    """A piece of what is said."""

    text: str


class Begun(NamedTuple):
    """A call of a tool begins."""

    name: str


class Arguments(NamedTuple):
    """A piece of the JSON that the call has as arguments."""

    text: str


class Ended(NamedTuple):
    """The call is complete. One that the answer's end cuts has no such event."""


class EnoughError(Exception):
    """There are as many calls as there may be."""


Event = Thought | Text | Begun | Arguments | Ended
Said = type[Thought] | type[Text]


class Events:
    """Collects events. White space around thoughts and calls is no part of the answer; a text keeps its own
    at the answer's beginning and end.
    """

    def __init__(self, most_calls: int, num_taken: Callable[[], int]) -> None:
        """`most_calls`: 0: any number. `num_taken`: how many characters of the answer were read."""
        self._most_calls, self._num_taken = most_calls, num_taken
        self.all: list[Event] = []
        self.text_places: list[tuple[int, int]] = []  # of each Text: its first character, and that behind it
        self._begins = 0  # this part
        self.num_ended = 0  # calls
        self._kind: Said | None = None
        self._spaces = ""  # held back: a marker may follow
        self._strips = False  # white space at the beginning of this part

    def say(self, kind: Said, text: str) -> None:
        if kind is not self._kind:
            self._strips = self._strips or kind is Thought
            self._kind, self._spaces = kind, ""
        text = self._spaces + text
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        said = text.rstrip()
        self._spaces = text[len(said) :]
        if said:
            self._tell(kind, said, len(self._spaces))

    def _tell(self, kind: Said, text: str, num_held: int) -> None:
        self.all.append(kind(text))
        if kind is Text:
            end = self._num_taken() - num_held
            self.text_places.append((max(self._begins, end - len(text)), end))

    def cut(self) -> None:
        """A marker ends the part."""
        self._kind, self._spaces, self._strips = None, "", True
        self._begins = self._num_taken()

    def begin(self, name: str) -> None:
        self.cut()
        self.all.append(Begun(name))

    def add(self, arguments: str) -> None:
        if arguments:
            self.all.append(Arguments(arguments))

    def end(self) -> None:
        """Raises EnoughError behind the last one."""
        self.num_ended += 1
        self.all.append(Ended())
        if self.num_ended == self._most_calls:
            raise EnoughError

    def finish(self) -> None:
        """The answer is over."""
        if self._kind is Text and self._spaces:
            self._tell(Text, self._spaces, 0)
        self._spaces = ""
