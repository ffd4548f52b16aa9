"""How many requests of a batch may be open: few while other requests come, so that these hardly wait."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

QUIET_S = 10.0  # so long after the last request of others, they count as gone
TURN_S = 0.25  # how often the server is asked for them
SHARE = 2  # without other requests, batches get one slot in two
REST = 9.0  # beside others, a batch rests this many times as long as its last request took
MOST_REST_S = 60.0


class Pace:
    def __init__(
        self, status: Callable[[], Awaitable[dict[str, Any]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`status`: of the scheduler model; empty where there is none."""
        self._status = status
        self._clock = clock
        self._num_slots = 0
        self._are_others = False  # at the last look
        self._looked_s = self._others_s = -math.inf  # the last look, and the last one that saw others
        # when a batch began to have requests open, and when it had none again; NaN: it has some
        self._began_s = self._ended_s = 0.0

    async def most(self, num_open: int) -> int:
        """`num_open`: requests of batches that are open."""
        now_s = self._clock()
        if not num_open and math.isnan(self._ended_s):
            self._ended_s = now_s
        if now_s - self._looked_s >= TURN_S:
            await self._look(num_open, now_s)
        most = self._most(num_open, now_s)
        if most and not num_open:
            self._began_s, self._ended_s = now_s, math.nan
        return most

    def _most(self, num_open: int, now_s: float) -> int:
        if not self._num_slots:
            return 0
        if now_s - self._others_s >= QUIET_S:
            return max(1, self._num_slots // SHARE)
        if num_open:
            return 1
        rest_s = min(REST * (self._ended_s - self._began_s), MOST_REST_S)
        if self._are_others:
            rest_s *= 2  # it waits for a moment without them
        return int(now_s - self._ended_s >= rest_s)

    def see_others(self) -> None:
        """A request of others has come. Those that do not come by this front are seen while they are open."""
        self._others_s = self._clock()

    async def _look(self, num_open: int, now_s: float) -> None:
        said = await self._status()
        ready = [each for each in said.get("instances", ()) if each["state"] == "ready"]
        self._looked_s, self._num_slots = now_s, sum(each["slots"] for each in ready)
        self._are_others = said.get("open", 0) > num_open
        if self._are_others:
            self._others_s = now_s
