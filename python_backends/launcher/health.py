"""Whether the processes that the launcher starts become ready, and whether they still answer; starts that the
host refuses for a while; and calls that take long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

ASK_EVERY_S = 2.0
MAX_FAILURES = 4  # in sequence; counted, not timed
# a failure after a longer time does not count: then this process stood still as well
LONGEST_ANSWER_S = 6.0
MAX_FAILED_STARTS = 5  # in sequence, none of which got ready: a further start would not help
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # before a start is tried again

log = logging.getLogger("gapless")


class GiveUpError(RuntimeError):
    """A process that must run cannot be kept running."""


class FailedStarts:
    """Counts starts, in sequence, after which a process never got ready, or ended at once. A process that was
    ready and died later may be started again without limit.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    def book(self, was_ready: bool) -> None:
        self._count = 0 if was_ready else self._count + 1
        if self._count == MAX_FAILED_STARTS:
            self._count = 0
            raise GiveUpError(
                f"{self._what} was started {MAX_FAILED_STARTS} times and never got ready, or ended at once;"
                " its messages are in the log above"
            )


class Start:
    """Starts a process, after longer and longer pauses if that fails. What the host refuses for the moment
    (too many processes, no memory, no files) says nothing of the process, and is tried for any time.
    """

    def __init__(
        self, what: str, start: Callable[[], None], longest_pause_s: float = LONGEST_PAUSE_S
    ) -> None:
        """`start` raises OSError if the host refuses."""
        self._what = what
        self._start = start
        self._longest_pause_s = longest_pause_s
        self.next_pause_s = FIRST_PAUSE_S
        self._pause_end_s = 0.0
        self.is_due = False  # it is to be started and is not yet

    def begin(self, has_failed: bool = False) -> None:
        """Starts it at once, or after a pause if the last start has failed: what it lacked may come back."""
        self.is_due = True
        if has_failed:
            self._begin_pause()
        else:
            self.forget_pauses()
        self.go_on()

    def forget_pauses(self) -> None:
        """The next one is short again."""
        self.next_pause_s, self._pause_end_s = FIRST_PAUSE_S, 0.0

    def go_on(self) -> None:
        """To be called several times a second. Does nothing once it is started."""
        if not self.is_due or time.monotonic() < self._pause_end_s:
            return
        try:
            self._start()
            self.is_due = False
        except OSError as error:
            log.warning(
                "%s can't be started (%s); trying again in %.0f s", self._what, error, self.next_pause_s
            )
            self._begin_pause()

    def _begin_pause(self) -> None:
        self._pause_end_s = time.monotonic() + self.next_pause_s
        self.next_pause_s = min(2 * self.next_pause_s, self._longest_pause_s)


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
        self._is_started = False

    @property
    def has_failed(self) -> bool:
        """Whether the last question that counts was not answered."""
        return self._failures > 0

    @property
    def is_lost(self) -> bool:
        return self._failures >= MAX_FAILURES

    def start(self) -> None:
        """Does nothing if it is started. Raises OSError if the host has no thread left."""
        if not self._is_started:
            start_thread(self._run, "pulse")
            self._is_started = True

    def stop(self) -> None:
        self._stopping.set()

    def forget(self) -> None:
        """Resets the count: the server, or a model that it could not do without, has been started again."""
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
    it has ended. Returns what it returns. Raises what either of the two raises, and OSError if the host has
    no thread left.
    """
    result: Future[bool] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:
            result.set_exception(error)

    start_thread(run, "slow call")
    while not wait([result], every_s).done:
        meanwhile()
    return result.result()


def start_thread(run: Callable[[], None], name: str) -> None:
    """Raises OSError if the host has no thread left."""
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise OSError(str(error)) from error
