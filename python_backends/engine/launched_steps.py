"""Which launched steps have ended, for a thread that must wait for them. Called by the engines whose own
threads compute. Tested in tests/pure/test_instance.py.
"""

from __future__ import annotations

import threading


class LaunchedSteps:
    def __init__(self) -> None:
        self._num_launched = 0  # written by the loop's thread alone
        self._num_ended = 0
        self._is_over = False
        self._changed = threading.Condition()

    def launched(self) -> None:
        self._num_launched += 1

    def ended(self) -> None:
        """The oldest step that had not ended has done so. Called by the thread that computes."""
        with self._changed:
            self._num_ended += 1
            self._changed.notify_all()

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
