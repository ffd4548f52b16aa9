"""The text that a custom tool is called with, as it comes: the arguments are an object with this one text."""

from __future__ import annotations

import json
import re

from front.parts.reading import proper

BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# what stands for characters: a pair of escapes, for one beyond the first 65,536, is not divided
HIGH, LOW = r"\\u[dD][89abAB][\da-fA-F]{2}", r"\\u[dD][c-fC-F][\da-fA-F]{2}"
NO_LOW = r"(?=[^\\]|\\[^u]|\\u(?![dD])[\da-fA-F]|\\u[dD][\dabAB])"
WHOLE = re.compile(rf'(?:[^"\\]|\\[^u]|{HIGH}{LOW}|(?!{HIGH})\\u[\da-fA-F]{{4}}|{HIGH}{NO_LOW})*')
CUT = re.compile(rf"\\|\\u[\da-fA-F]{{0,3}}|{HIGH}(?:\\(?:u[\da-fA-F]{{0,3}})?)?")


class Input:
    """Reads the arguments of one call, in pieces. `text` is what they said so far."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._held = ""
        self._has_begun = self._is_over = False

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, arguments: str) -> str:
        """Returns what the text grows by."""
        if self._is_over:
            return ""
        self._held += arguments
        if not self._has_begun:
            begin = BEGIN.match(self._held)
            if begin is None:
                return ""
            self._has_begun, self._held = True, self._held[begin.end() :]
        return self._told()

    def end(self) -> str:
        """The call has ended: arguments of another kind are the text themselves. Returns as `add`."""
        rest, self._held = self._held, ""
        if self._is_over:
            return ""
        self._is_over = True
        if not self._has_begun:
            rest = _other(rest)
        elif CUT.fullmatch(rest):
            rest = ""
        self._texts.append(rest)
        return rest

    def _told(self) -> str:
        found = WHOLE.match(self._held)
        assert found is not None
        self._held = self._held[found.end() :]
        self._is_over = self._held.startswith('"')
        try:
            text = proper(str(json.loads(f'"{found[0]}"', strict=False)))
        except ValueError:  # an escape that JSON does not have
            text = found[0]
        self._texts.append(text)
        return text


def _other(arguments: str) -> str:
    """Of arguments that don't begin with the text."""
    try:
        return proper(str(json.loads(arguments)["input"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return arguments
