"""The tokens of a steady run on the wire: whose they are is said once, and then only what comes anew.

A `Tokens` names its rows in 16 bytes each. As long as the next step has the very same rows, a `MoreTokens` follows, and 4 bytes a row
in a frame behind it, which is copied once. Both ends of a session hold the last `Tokens`: frames of a session come in order and none
is lost. Called by `sessions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from python_backends.nouns.messages import MoreTokens
from python_backends.nouns.step import Tokens


class RunsOut:
    """The sender's side, in one session."""

    def __init__(self) -> None:
        self._said: Tokens | None = None

    def shorten(self, messages: Sequence[Any]) -> tuple[tuple[Any, ...], list[memoryview]]:
        """What is to be said, and the frames behind it."""
        frames: list[memoryview] = []
        return tuple(self._short(message, frames) if isinstance(message, Tokens) else message for message in messages), frames

    def _short(self, tokens: Tokens, frames: list[memoryview]) -> Tokens | MoreTokens:
        said, self._said = self._said, tokens
        if said is None or tokens.firsts is not said.firsts or tokens.request_ids is not said.request_ids:
            return tokens
        frames.append(np.ascontiguousarray(tokens.tokens, np.int32).data)
        return MoreTokens(tokens.further, tokens.finishes if tokens.finishes.any() else None, tokens.log_probs)


class RunsIn:
    """The receiver's side, in one session."""

    def __init__(self) -> None:
        self._said: Tokens | None = None

    def complete(self, messages: Sequence[Any], frames: Sequence[bytes | memoryview]) -> list[Any]:
        behind = iter(frames)
        return [self._whole(message, behind) for message in messages]

    def _whole(self, message: Any, frames: Iterator[bytes | memoryview]) -> Any:
        if isinstance(message, Tokens):
            self._said = message
        if not isinstance(message, MoreTokens):
            return message
        assert self._said is not None, "a run goes on that has not begun"
        tokens = np.frombuffer(next(frames), np.int32)
        assert len(tokens) == len(self._said.tokens), "a run goes on with other rows"
        finishes = np.zeros(len(tokens), np.uint8) if message.finishes is None else message.finishes
        return self._said.changed(tokens=tokens, finishes=finishes, log_probs=message.log_probs, further=message.further)
