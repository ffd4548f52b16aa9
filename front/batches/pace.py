"""How many requests of a batch may be open: few while other requests come, so that these hardly wait."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

QUIET_S = 10.0  # so long after the last request of others, they count as gone
TURN_S = 0.25  # how often the server is asked for them
SHARE = 2  # without other requests, batches get one slot in two


class Pace:
    def __init__(self, status: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """`status`: of the scheduler model; empty where there is none."""
        self._status = status
        self._num_slots = 0
        self._looked_s = self._others_s = -math.inf  # when there were others, by the monotonic clock

    async def most(self, num_open: int) -> int:
        """`num_open`: requests of batches that are open."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= TURN_S:
            said = await self._status()
            ready = [each for each in said.get("instances", ()) if each["state"] == "ready"]
            self._looked_s, self._num_slots = now_s, sum(each["slots"] for each in ready)
            if said.get("open", 0) > num_open:
                self._others_s = now_s
        if not self._num_slots:
            return 0
        return 1 if now_s - self._others_s < QUIET_S else max(1, self._num_slots // SHARE)
