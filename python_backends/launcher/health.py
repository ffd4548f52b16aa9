"""Whether the processes that the launcher has started become ready, and whether they still answer; and calls
that take long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

ASK_EVERY_S = 2.0
MAX_FAILURES = 4  # in sequence; counted, not timed
# a failure after a longer time does not count: then this process stood still as well
LONGEST_ANSWER_S = 6.0
MAX_FAILED_STARTS = 5  # in sequence, none of which got ready: a further start would not help


class GiveUpError(RuntimeError):
    """A process that must run cannot be kept running."""


class FailedStarts:
    """Counts starts, in sequence, after which a process never got ready. A process that was ready and died
    later may be started again without limit.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    def book(self, was_ready: bool) -> None:
        self._count = 0 if was_ready else self._count + 1
        if self._count == MAX_FAILED_STARTS:
            raise GiveUpError(
                f"{self._what} was started {MAX_FAILED_STARTS} times and never got ready; its messages are in"
                " the log above"
            )


class Pulse:
    """Asks every few seconds whether a server answers. Uses its own thread, because a server that hangs
    blocks the thread that asks.

    The launcher asks whether the ensemble is ready in this way. It is the only way to find a tritonserver
    that is alive but does not answer.
    """

    def __init__(
        self,
        answers: Callable[[], bool],
        ask_every_s: float = ASK_EVERY_S,
        longest_s: float = LONGEST_ANSWER_S,
    ) -> None:
        self._answers = answers
        self._longest_s = longest_s
        self._ask_every_s = ask_every_s
        self._failures = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    @property
    def has_failed(self) -> bool:
        """Whether the last question that counts was not answered."""
        return self._failures > 0

    @property
    def is_lost(self) -> bool:
        return self._failures >= MAX_FAILURES

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def forget(self) -> None:
        """Resets the count, because the server has been started again."""
        self._failures = 0

    def _run(self) -> None:
        while not self._stopping.wait(self._ask_every_s):
            self._ask()

    def _ask(self) -> None:
        asked_s = time.monotonic()
        if self._answers():
            self._failures = 0
        elif time.monotonic() - asked_s < self._longest_s:
            self._failures += 1


def slow_call(call: Callable[[], bool], meanwhile: Callable[[], None], every_s: float) -> bool:
    """Makes a call that may take a minute in a thread of its own, and calls `meanwhile` every `every_s` until
    it has ended. Returns what it returns. Raises what either of the two raises.
    """
    result: Future[bool] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, name="slow call", daemon=True).start()
    while not wait([result], every_s).done:
        meanwhile()
    return result.result()
