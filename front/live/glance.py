"""The stream of snapshots for open pages. While no page is open, the server is not asked for anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from front.errors import ProblemError
from front.live.snapshot import Snapshots
from front.responses import event

EVERY_S = 0.5  # a look takes some milliseconds of the processors
MOST_WATCHERS = 64  # of one front process


class Glance:
    """All watchers get the same bytes. One that reads slowly misses snapshots, and delays no other."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[dict[str, Any]]],
        restarts: Callable[[], Mapping[str, int]],
        demo: bool = False,
    ) -> None:
        """`ask` returns the scheduler model's status, empty if there is none; `restarts` how often each
        process was started again. `demo`: pages may kill an instance.
        """
        self._ask = ask
        self._restarts = restarts
        self._snapshots = Snapshots(demo)
        self._num_watchers = 0
        self._is_ending = False
        self._looking: asyncio.Task[None] | None = None
        self._next: asyncio.Future[bytes] | None = None

    def watch(self) -> AsyncGenerator[bytes, None]:
        """Yields snapshots as events. Raises ProblemError."""
        if self._num_watchers >= MOST_WATCHERS:
            said = f"{MOST_WATCHERS} pages are open, which is the most that can be"
            raise ProblemError(429, said, "too_many_watchers", kind="rate_limit_error")
        return self._events()

    def end(self) -> None:
        """Ends the streams of all watchers: the process is about to end."""
        self._is_ending = True
        if self._next is not None:
            self._next.set_result(b"")
        self._stop()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        self._num_watchers += 1
        try:
            while not self._is_ending and (snapshot := await asyncio.shield(self._coming())):
                yield snapshot
        finally:
            self._num_watchers -= 1
            if not self._num_watchers:
                self._stop()

    def _coming(self) -> asyncio.Future[bytes]:
        if self._looking is None:
            self._snapshots.forget()
            self._next = asyncio.get_running_loop().create_future()
            self._looking = asyncio.create_task(self._look())
        assert self._next is not None
        return self._next

    def _stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._looking = self._next = None

    async def _look(self) -> None:
        """A failure ends the streams of all watchers; the next one begins again."""
        while self._next is not None:
            try:
                snapshot = event(self._snapshots.next(await self._ask(), self._restarts()))
            except Exception as error:
                self._next.set_exception(error)
                self._looking = self._next = None
                return
            came, self._next = self._next, asyncio.get_running_loop().create_future()
            came.set_result(snapshot)
            await asyncio.sleep(EVERY_S)
