"""How the launcher learns that a Python model's process gets on: a beat on the board, from a thread of its
own.

A beat alone would prove only that this thread runs. So there are none while one call of `execute`, of the
tokenizer one request of its batch, or one turn of the scheduler model's own thread, takes longer than any
honest one: the launcher then sees the same as of a process that stands still, and kills it. A pause of the
whole machine is not counted. Each model makes one Life at the end of `initialize`.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

from python_backends.linux.pauses import Silence
from python_backends.watching.board import Board

log = logging.getLogger("gapless.life")

BEAT_EVERY_S = 0.5
# far above the longest honest one: a request takes the tokenizer a second at most
LONGEST_CALL_S = 30.0
LONGEST_PREDICTION_S = 300.0  # the first one loads an encoder, at the lowest priority

Execute = Callable[[Any, list[Any]], Any]


class Life:
    """`turned` is called by a thread that must never stand still; `call_begins` and `call_ends` by `watched`,
    `call_begins` also within a call, where another part of it begins that may take as long.
    """

    def __init__(self, model: str, longest_s: float = LONGEST_CALL_S, board: Board | None = None) -> None:
        self._model = model
        self._longest_s = longest_s
        self._board = board or Board.inherited()
        self._num_calls = 0
        self._in_call = False
        self._num_turns = 0
        self._stopping = threading.Event()
        self._board.beat(model)
        self._thread = threading.Thread(target=self._beat, name="life", daemon=True)
        self._thread.start()

    def call_begins(self) -> None:
        self._num_calls, self._in_call = self._num_calls + 1, True

    def call_ends(self) -> None:
        self._in_call = False

    def turned(self) -> None:
        """From the first time on, turns are expected."""
        self._num_turns += 1

    def end(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _beat(self) -> None:
        call, turn = Silence(), Silence()
        num_beats, hangs = 0, False
        while not self._stopping.wait(BEAT_EVERY_S):
            num_beats += 1
            call_s = call.look(self._num_calls if self._in_call else -num_beats)
            turn_s = turn.look(self._num_turns or -num_beats)
            hung, hangs = hangs, max(call_s, turn_s) >= self._longest_s
            if not hangs:
                self._board.beat(self._model)
            elif not hung:
                log.error("%s hangs: one call has taken more than %.0f s", self._model, self._longest_s)


def watched(execute: Execute) -> Execute:
    """A model's `execute`, whose calls its `life` times."""

    @functools.wraps(execute)
    def timed(model: Any, requests: list[Any]) -> Any:
        model.life.call_begins()
        try:
            return execute(model, requests)
        finally:
            model.life.call_ends()

    return timed
