"""The attempts of one answer: whether the request is sent again after one has failed, and when."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from client.errors import FailedError, GaplessError, RefusedError, UnavailableError
from client.retries import Retries

# attempts, one after the other, that brought no token
MAX_LOST = 4  # and whose server ended: the request itself may end it
MAX_FAILED = 3  # that failed inside, while the server was there
MAX_VAIN = 8  # of all kinds
SUSPECT_AFTER = 2  # losses: of those that were lost so often one is sent at a time, to end the server alone
ALONE_S = 10.0  # that the others wait at most for its first token
# how long the server has to be up before: the launcher gives up one that ends several times within 5 s
SETTLED_S = 6.0
# codes of what is no better later: the server does not come back, or the engine dies whenever it runs this
FINAL = ("shutting_down", "engine_failed")
# a request that no server has had waits for a restart (docs/operations.md), not for a first start
NEW_S = 60.0
LEFT = "the server ended this answer as if its reader had left"
UNREACHED = re.compile("ailed to connect")  # gRPC's words
# Triton's words of a model that is not there yet or no more, and ours: no server ended
THERE = re.compile(f"is not ready|unloading|no available versions|unknown model|{LEFT}")
LOOK_EVERY_S = 0.2
PAUSES = Retries(first_s=0.5)


class LostError(FailedError):
    """The server ended as often as it may in attempts that brought no token."""

    code = "request_lost"


def is_lost(error: GaplessError) -> bool:
    """Whether a server ended that had the request, or a part of it did."""
    is_uncoded = isinstance(error, UnavailableError) and not error.code
    return is_uncoded and not UNREACHED.search(str(error)) and not THERE.search(str(error))


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


class Turn:
    """What the suspects of all answers take one after the other."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.num_given_up = 0
        self.is_after_loss = True  # the server may be away, which `is_up` says a moment later


class Attempts:
    """Of one answer."""

    def __init__(self, patience: Patience, new: set[int], turn: Turn) -> None:
        """`new`: those that wait and that no server has had. `new` and `turn` are those of all answers."""
        self._patience = patience
        self._new = new
        self._turn = turn
        self._is_alone = False  # it has the turn
        self._turn_end: asyncio.TimerHandle | None = None
        self._num_vain = self._num_lost = self._num_failed = 0  # since the last token
        self._num_full = 0  # since the last token: a server had no place for an answer that has begun
        self._waited_s = 0.0  # for the server, since the last token; not in its queue
        self._was_taken = self._has_begun = False  # a server had it; tokens came

    def came(self, num_tokens: int) -> None:
        self._was_taken = True
        if num_tokens:
            self._turn.is_after_loss = self._turn.is_after_loss and not self._is_alone
            self.end()
            self._has_begun = True
            self._num_vain = self._num_lost = self._num_failed = self._num_full = 0
            self._waited_s = 0.0

    def end(self) -> None:
        """The next suspect may be sent. Does nothing where this one has not the turn."""
        if self._turn_end is not None:
            self._turn_end.cancel()
            self._turn_end = None
        if self._is_alone:
            self._is_alone = False
            self._turn.lock.release()

    async def wait_after(self, error: GaplessError) -> None:
        """Waits until it makes sense to ask again. Raises `error` if it makes none, and LostError if the
        server was lost too often while it had the request.
        """
        self.end()
        self._count(error)
        if self._is_final(error):
            raise error
        self._was_taken = self._was_taken or not UNREACHED.search(str(error))
        if self._num_lost >= MAX_LOST:
            self._turn.num_given_up += 1
            raise LostError(f"given up after {MAX_LOST} attempts that brought no token ({error})")
        if self._num_vain >= MAX_VAIN:
            raise error
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

    def _count(self, error: GaplessError) -> None:
        is_full = self._has_begun and error.code == "queue_full"
        self._num_full += is_full
        self._num_vain += not is_full
        self._num_lost += is_lost(error)
        self._turn.is_after_loss = self._turn.is_after_loss or is_lost(error)
        self._num_failed += not isinstance(error, UnavailableError)

    async def _wait(self, error: GaplessError, longest_s: float) -> None:
        """Until Triton answers, and a suspect has its turn. Raises `error`."""
        if self._waited_s > longest_s:
            raise error
        began_s = time.monotonic() - self._waited_s
        if self._num_lost >= SUSPECT_AFTER:
            await self._take_turn()
        try:
            if not self._is_alone or self._turn.is_after_loss:
                await asyncio.sleep(PAUSES.pause_s(min(self._num_vain + self._num_full, MAX_VAIN)))
            await self._until_up(error, began_s + longest_s)
        except BaseException:
            self.end()
            raise
        self._waited_s = time.monotonic() - began_s
        if self._is_alone:
            self._turn_end = asyncio.get_running_loop().call_later(ALONE_S, self.end)

    async def _take_turn(self) -> None:
        """If another suspect is given up meanwhile, this one is none any more."""
        num_given_up = self._turn.num_given_up
        await self._turn.lock.acquire()
        self._is_alone = True
        if self._turn.num_given_up > num_given_up:
            self._num_lost = 0
            self.end()

    async def _until_up(self, error: GaplessError, end_s: float) -> None:
        """Until Triton answers; for a suspect, until it has done so for SETTLED_S since it was seen away.
        Raises `error` if it is away at `end_s`.
        """
        settled_s = 0.0
        while not (is_up := self._patience.is_up()) or time.monotonic() < settled_s:
            if not is_up:
                if self._patience.is_ending() or time.monotonic() > end_s:
                    raise error
                settled_s = time.monotonic() + SETTLED_S * self._is_alone
            await asyncio.sleep(LOOK_EVERY_S)

    def _is_final(self, error: GaplessError) -> bool:
        if isinstance(error, RefusedError) or error.code in FINAL or self._patience.is_ending():
            return True
        if error.code == "queue_full" and not self._was_taken:
            return True
        return self._num_failed >= MAX_FAILED
