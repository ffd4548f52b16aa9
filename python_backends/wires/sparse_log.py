"""Log lines about what may happen a thousand times a second: one of each kind a minute."""

from __future__ import annotations

import logging
import math
import time

SAY_EVERY_S = 60.0


class SparseLog:
    """Owns when each kind of line was last written. One thread uses it."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said_s: dict[str, float] = {}  # by kind

    def warning(self, kind: str, text: str, *args: object, exc_info: bool = False) -> None:
        """Nothing, if a line of this kind was written within the last SAY_EVERY_S."""
        now_s = time.monotonic()
        if now_s - self._said_s.get(kind, -math.inf) >= SAY_EVERY_S:
            self._said_s[kind] = now_s
            self._log.warning(text, *args, exc_info=exc_info)
