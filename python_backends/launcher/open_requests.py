"""Whether requests are open in a server that drains. Called by the supervisor."""

from __future__ import annotations

from python_backends.launcher.triton_server import TritonServer
from python_backends.watching.metrics import TIMESTAMP

COUNTS = ("gapless_requests_running", "gapless_requests_waiting")


class OpenRequests:
    """Reads /metrics, which the scheduler model writes about once a second: what was there at the first look
    may be from before it. The time of writing is only compared with that of the first look: a clock may be
    set back.
    """

    def __init__(self, server: TritonServer) -> None:
        self._server = server
        self._first: float | None = None

    def may_be_there(self, limit_s: float) -> bool:
        """Returns False if the server or its streams are gone, or if no request was open at a time after the
        first call. Else returns True, after at most `limit_s`.
        """
        if not self._server.has_streams():
            return False
        numbers = self._server.numbers(limit_s)
        written = numbers.get(TIMESTAMP)
        if self._first is None:
            self._first = written
        return written in (None, self._first) or any(numbers[name] > 0 for name in COUNTS)
