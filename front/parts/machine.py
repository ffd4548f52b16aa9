"""One state machine for thoughts, texts and calls: whatever the pieces are in which an answer comes, its
parts are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from front.parts.calls import CallReader
from front.parts.channels import ChannelReader
from front.parts.events import EnoughError, Event, Events, Text, Thought
from front.parts.formats import Format
from front.parts.reading import IS_TOKEN, BrokenError, Came, Markers, OverError, Reading


@dataclass(frozen=True, slots=True)
class Tokens:
    """The marks that are tokens of the vocabulary."""

    characters: Mapping[str, str] = field(default_factory=dict)  # by the mark: what stands for it in a text
    hidden: Collection[str] = ()  # characters of those that answers don't show

    def spell(self, mark: str) -> str:
        """Returns a mark as it comes: what is a token in it counts only as that token."""
        for text in sorted(self.characters, key=len, reverse=True):
            mark = mark.replace(text, self.characters[text])
        return mark


@dataclass(frozen=True, slots=True)
class Expected:
    """What an answer may have. `schemas`: of the arguments of the tools that it may call, by their names.
    `open_thought`: what closes the thought that the prompt has opened; empty: there is none. `names`: the
    call of a tool that is not among them is text; None: any call is one.
    """

    schemas: Mapping[str, Any] = field(default_factory=dict)
    most_calls: int = 0  # 0: any number
    open_thought: str = ""
    names: Collection[str] | None = None


class Machine:
    """Reads one answer."""

    def __init__(self, form: Format, tokens: Tokens, expected: Expected) -> None:
        spelled = {character: text for text, character in tokens.characters.items()}
        self._came = Came(spelled, tokens.hidden)
        self._events = Events(expected.most_calls, lambda: self._came.num_taken)
        self._form = form
        self._takes_calls = bool(expected.schemas)
        spell = tokens.spell
        self._thoughts = {spell(opens): spell(closes) for opens, closes in form.thoughts}
        self._call_mark, self._closes = map(spell, form.call)
        marks = set(self._thoughts)
        if self._takes_calls:
            around = (mark for mark in map(spell, form.around) if IS_TOKEN.fullmatch(mark))
            marks.update(filter(None, (self._call_mark, *around)))
        self._in_text = Markers(marks)
        self._reader = CallReader(form, spell, self._came, self._events, expected.schemas, expected.names)
        self._open_thought = spell(expected.open_thought)
        names = expected.names if self._takes_calls else ()
        self._channels = ChannelReader(spell, self._came, self._events, names) if form.has_channels else None
        self._open = ""  # what closes the thought that is read
        self._running = self._run()

    def feed(self, text: str, is_over: bool = False) -> list[Event]:
        """Returns what is certain now. `is_over`: the answer ends with this text."""
        self._events.text_places = []
        self._came.add(text, is_over)
        next(self._running, None)
        if is_over:
            self._events.finish()
        events, self._events.all = self._events.all, []
        return events

    @property
    def open_thought(self) -> str:
        """What closes the thought in which the answer is, or was when it ended; empty: it is in none."""
        return self._came.letters(self._open)

    @property
    def text_places(self) -> list[tuple[int, int]]:
        """Of each Text that `feed` has returned last: where it begins and ends in what was fed."""
        return self._events.text_places

    def _run(self) -> Reading[None]:
        try:
            if self._channels is not None:
                yield from self._channels.read()
            else:
                yield from self._parts()
        except OverError:
            pass
        except EnoughError:  # what follows is read by nothing
            self._events.cut()

    def _parts(self) -> Reading[None]:
        if self._open_thought:
            yield from self._thought(self._open_thought)
        yield from self._bare_calls()
        while mark := (yield from self._came.until(self._in_text, self._say)):
            if mark in self._thoughts:
                self._events.cut()
                yield from self._thought(self._thoughts[mark])
                yield from self._bare_calls()
            elif mark == self._call_mark:
                yield from self._call(mark)
                yield from self._bare_calls()
            else:
                self._events.cut()

    def _say(self, text: str) -> None:
        self._events.say(Text, text)

    def _thought(self, closes: str) -> Reading[None]:
        """Up to its end, or to a call that begins with a token."""
        calls = (self._call_mark,) if self._takes_calls and IS_TOKEN.match(self._call_mark) else ()
        self._open = closes
        found = yield from self._came.until(
            Markers((closes, *calls)), lambda text: self._events.say(Thought, text)
        )
        if found:
            self._open = ""
        self._events.cut()
        if found in calls:
            yield from self._call(found)

    def _call(self, before: str) -> Reading[bool]:
        """Returns whether there was one. What is none is text, with what stands before it."""
        self._came.keep()
        shown = self._came.shown(before)
        try:
            yield from self._reader.read()
        except BrokenError:
            if not self._reader.has_begun:
                self._say(shown + self._came.shown(self._came.kept()))
                return False
            yield from self._came.until(Markers(filter(None, (self._closes,))), self._events.add)
            self._events.end()
        except OverError:
            if not self._reader.has_begun:
                self._say(shown + self._came.shown(self._came.kept()))
            raise
        self._came.kept()
        yield from self._behind()
        return True

    def _behind(self) -> Reading[None]:
        """What ends a call and says nothing."""
        for literal in (self._form.tail, self._closes):
            yield from self._came.skip_spaces()
            if literal:
                yield from self._came.starts(literal)

    def _bare_calls(self) -> Reading[None]:
        """Calls that nothing marks, where the format has such: at the answer's beginning, behind thoughts and
        behind each other.
        """
        is_call = self._form.is_bare and self._takes_calls
        while is_call:
            self._came.keep()
            try:
                while (first := (yield from self._came.peek())).isspace() or first == ";":
                    self._came.take(1)
            except OverError:
                self._say(self._came.kept())
                raise
            before = self._came.kept()
            if first != "{":
                self._say(before)
            is_call = first == "{" and (yield from self._call(before))
