"""Which launched steps have ended: for a thread that must wait for them, and as a signal to a loop that waits
for something else meanwhile. Called by the engines whose own threads compute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class LaunchedSteps:
    """A thread that is blocked in `collect` is not signalled: the wake-up would stay pending and be mistaken
    for the end of the next step.
    """

    def __init__(self) -> None:
        self._num_launched = 0  # written by the loop's thread alone
        self._num_ended = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._tell: Callable[[], None] | None = None
        self._is_awaited = False

    def on_done(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Inside this context the loop's thread waits for a step."""
        self._is_awaited = True
        try:
            yield
        finally:
            self._is_awaited = False

    def launched(self) -> None:
        self._num_launched += 1

    def ended(self) -> None:
        """The oldest step that had not ended has done so. Called by the thread that computes."""
        with self._changed:
            self._num_ended += 1
            self._changed.notify_all()
        self.signal()

    def signal(self) -> None:
        """A step has ended, or failed. Called by the thread that computes."""
        if self._tell is not None and not self._is_awaited:
            self._tell()

    def stop(self) -> None:
        """No launched step will end after this: the engine is closed, or has failed."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait(self) -> None:
        """Returns when the steps launched before this call have ended, or never will."""
        count = self._num_launched
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._num_ended >= count)
