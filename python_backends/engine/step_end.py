"""Signals the end of a step to a loop that waits for something else meanwhile. Called by the engines whose
own threads compute. Tested in tests/pure/test_instance.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepEnd:
    """Tells another thread that a step has ended. A thread that is blocked in `collect` is not signalled: the
    wake-up would stay pending and be mistaken for the end of the next step.
    """

    def __init__(self) -> None:
        self._tell: Callable[[], None] | None = None
        self._is_awaited = False

    def on_done(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Inside this context the loop's thread waits for the step."""
        self._is_awaited = True
        try:
            yield
        finally:
            self._is_awaited = False

    def came(self) -> None:
        """Called by the thread that has computed."""
        if self._tell is not None and not self._is_awaited:
            self._tell()
