"""A clock that a test turns."""

from __future__ import annotations


class Clock:
    """Called, it returns `now_s`, which the test sets: seconds."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
