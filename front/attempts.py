"""The attempts of one answer: whether the request is sent again after one has failed, and when."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from client.errors import FailedError, GaplessError, RefusedError, UnavailableError
from client.retries import Retries

MAX_LOST = 8  # attempts, one after the other, that brought no token: the request itself may end the server
MAX_FAILED = 3  # such attempts that failed inside, while the server was there
# a request that no server has had waits for a restart (docs/operations.md), not for a first start
NEW_S = 60.0
# codes of what is no better later: the server does not come back, or the engine dies whenever it runs this
FINAL = ("shutting_down", "engine_failed")
UNREACHED = re.compile("ailed to connect")  # gRPC's words
LOOK_EVERY_S = 0.2
PAUSES = Retries(first_s=0.5)


class LostError(FailedError):
    """Attempts that brought no token were as many as there may be."""

    code = "request_lost"


def is_lost(error: GaplessError) -> bool:
    """Whether a server ended that had the request, or a part of it did."""
    return isinstance(error, UnavailableError) and not error.code and not UNREACHED.search(str(error))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an answer waits for the server. `is_up` says whether Triton and its models answer, as the
    launcher sees it; `is_ending`, whether the server drains: then it does not come back. `longest_s`: since
    the last token; the launcher itself gives a start up after server.ready_s. `most_new`: requests that wait
    at the same time and that no server has had; those that one had were no more than it takes.
    """

    is_up: Callable[[], bool]
    is_ending: Callable[[], bool]
    longest_s: float
    most_new: int = 1024


class Attempts:
    """Of one answer."""

    def __init__(self, patience: Patience, new: set[int]) -> None:
        """`new`: those that wait and that no server has had."""
        self._patience = patience
        self._new = new
        self._num_lost = self._num_failed = 0  # since the last token
        self._num_full = 0  # since the last token: a server had no place for an answer that has begun
        self._waited_s = 0.0  # for the server, since the last token; not in its queue
        self._was_taken = self._has_begun = False  # a server had it; tokens came

    def came(self, num_tokens: int) -> None:
        self._was_taken = True
        if num_tokens:
            self._has_begun = True
            self._num_lost = self._num_failed = self._num_full = 0
            self._waited_s = 0.0

    async def wait_after(self, error: GaplessError) -> None:
        """Waits until it makes sense to ask again. Raises `error` if it makes none, and LostError if the
        server was lost too often while it had the request.
        """
        is_full = self._has_begun and error.code == "queue_full"
        self._num_full += is_full
        self._num_lost += not is_full
        self._num_failed += not isinstance(error, UnavailableError)
        if self._is_final(error):
            raise error
        self._was_taken = self._was_taken or not UNREACHED.search(str(error))
        if self._num_lost >= MAX_LOST:
            lost = LostError(f"given up after {MAX_LOST} attempts that brought no token ({error})")
            raise lost if self._was_taken and error.code != "queue_full" else error
        if self._was_taken:
            await self._wait(error, self._patience.longest_s)
            return
        if len(self._new) >= self._patience.most_new:
            raise error
        self._new.add(id(self))
        try:
            await self._wait(error, min(NEW_S, self._patience.longest_s))
        finally:
            self._new.remove(id(self))

    async def _wait(self, error: GaplessError, longest_s: float) -> None:
        """Until Triton answers. Raises `error`."""
        if self._waited_s > longest_s:
            raise error
        began_s = time.monotonic() - self._waited_s
        await asyncio.sleep(PAUSES.pause_s(min(self._num_lost + self._num_full, MAX_LOST)))
        while not self._patience.is_up():
            if self._patience.is_ending() or time.monotonic() - began_s > longest_s:
                raise error
            await asyncio.sleep(LOOK_EVERY_S)
        self._waited_s = time.monotonic() - began_s

    def _is_final(self, error: GaplessError) -> bool:
        if isinstance(error, RefusedError) or error.code in FINAL or self._patience.is_ending():
            return True
        if error.code == "queue_full" and not self._was_taken:
            return True
        return self._num_failed >= MAX_FAILED
