"""Reads gpt-oss's answers: parts with a header, which says in which channel they are and who gets them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from front.parts.events import Events, Text, Thought
from front.parts.reading import Came, Markers, Reading

CALLED = re.compile(r"to=(?:functions\.)?([\w.\-]{1,256})")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
LONGEST_HEADER = 600
THOUGHTS = "analysis"


class ChannelReader:
    """Reads an answer that begins within a header, as the template leaves it."""

    def __init__(
        self, spell: Callable[[str], str], came: Came, events: Events, names: Collection[str] | None
    ) -> None:
        """`names`: of the tools that may be called; None: all."""
        self._came = came
        self._events = events
        self._names = names
        self._message = Markers((spell("<|message|>"),))
        self._start = spell("<|start|>")
        self._ends = Markers(map(spell, ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")))
        self._spell = spell

    def read(self) -> Reading[None]:
        """To the answer's end."""
        last = ""
        while not (yield from self._came.is_over()):
            header = last if last == self._spell("<|channel|>") else ""
            last = yield from self._part(self._came.letters(header))

    def _part(self, begun: str) -> Reading[str]:
        """Returns the mark behind it."""
        pieces = [begun]

        def tell(text: str) -> None:
            if sum(map(len, pieces)) < LONGEST_HEADER:
                pieces.append(self._came.letters(text))

        if not (yield from self._came.until(self._message, tell, as_it_is=True)):
            return ""
        written = "".join(pieces)
        called, channel = CALLED.search(written), CHANNEL.search(written)
        self._events.cut()
        if called and (self._names is None or called[1] in self._names):
            return (yield from self._call(called[1]))
        kind = Thought if channel and channel[1] == THOUGHTS else Text
        return (yield from self._came.until(self._ends, lambda text: self._events.say(kind, text)))

    def _call(self, name: str) -> Reading[str]:
        self._events.begin(name)
        has_arguments = False

        def add(text: str) -> None:
            nonlocal has_arguments
            has_arguments = has_arguments or bool(text.strip())
            self._events.add(text)

        mark = yield from self._came.until(self._ends, add)
        if mark:
            if not has_arguments:
                self._events.add("{}")
            self._events.end()
        return mark
