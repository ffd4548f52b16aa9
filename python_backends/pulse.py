"""Whether somebody still answers: asked every few seconds from a thread of its own, because one that hangs holds up whoever asks.

The launcher asks after the ensemble in this way: a tritonserver that is alive and silent shows in no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

ASK_EVERY_S = 2.0
MAX_FAILURES = 4  # one after the other; counted, not timed, so that a machine that stood still is no failure of the server's


class Pulse:
    def __init__(self, answers: Callable[[], bool], ask_every_s: float = ASK_EVERY_S) -> None:
        self._answers = answers
        self._ask_every_s = ask_every_s
        self._failures = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    @property
    def is_lost(self) -> bool:
        return self._failures >= MAX_FAILURES

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def forget(self) -> None:
        """Whoever is asked has been started again."""
        self._failures = 0

    def _run(self) -> None:
        while not self._stopping.wait(self._ask_every_s):
            self._failures = 0 if self._answers() else self._failures + 1
