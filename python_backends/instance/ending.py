"""When the process of an instance should end. Its main thread makes one."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable

from python_backends.linux.process_group import ASK, obeyed

WAIT_S = 1.0  # by then a launcher that got the same signal has said that it drains


class Ending:
    """ASK, which the launcher sends, ends the instance at once. Other signals end it after WAIT_S, unless the
    launcher drains: then they were sent to all processes, as systemd does, and open requests may end first.
    """

    def __init__(self, is_draining: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        """`is_draining`: whether the launcher does so."""
        self._is_draining = is_draining
        self._clock = clock
        self._at_s = math.inf

    def obey_signals(self) -> None:
        signal.signal(ASK, lambda *_: self.end_now())
        for name in obeyed(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, lambda *_: self.end_unless_draining())

    def end_now(self) -> None:
        self._at_s = -math.inf

    def end_unless_draining(self) -> None:
        self._at_s = min(self._at_s, self._clock() + WAIT_S)

    def is_due(self) -> bool:
        """To be asked at every turn of the loop."""
        if self._at_s == math.inf or self._at_s > self._clock():
            return False
        if self._at_s > -math.inf and self._is_draining():
            self._at_s = math.inf  # the launcher will say when
        return self._at_s < math.inf
