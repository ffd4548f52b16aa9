"""What the scheduler model says of open requests, on its control socket."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

from python_backends.nouns.order import Order, RefusedOrderError
from python_backends.wires.control import SILENT_S, ask

KEPT_S = 1.0
ANSWER_S = 1.0  # it answers within one turn
LEAST_S, MOST_S = 1, 120  # clients of OpenAI wait for no longer


class Queue:
    def __init__(self, run_directory: Path) -> None:
        self._run_directory = run_directory
        self._status: dict[str, Any] = {}
        self._asked_s = -math.inf
        self._asking = asyncio.Lock()

    async def status(self) -> dict[str, Any]:
        """Returns a status that is at most KEPT_S old; empty if there is none to be had."""
        async with self._asking:
            if time.monotonic() - self._asked_s > KEPT_S:
                self._status = await self._ask(Order("status"))
                self._asked_s = time.monotonic()
            return self._status

    async def now(self) -> dict[str, Any]:
        """Returns the status of this moment; empty if there is no scheduler model, or it hangs."""
        return await self._ask(Order("status"), SILENT_S)

    async def retry_after_s(self) -> int:
        """Returns in how many seconds those that wait may all have slots, between LEAST_S and MOST_S."""
        queue_wait_s: float = (await self.status()).get("queue_wait_s", 0.0)
        return min(MOST_S, max(LEAST_S, math.ceil(queue_wait_s)))

    async def waits_for(self, client_id: str) -> str:
        """Returns as one line what a request waits for; empty if it doesn't wait, or a status does not name
        it: not one of the first that came. All are answered from one status that is at most KEPT_S old.
        """
        named = (await self.status()).get("requests", [])
        return _in_words([each for each in named if each["id"] == client_id])

    async def requests(self, client_id: str) -> list[dict[str, Any]] | None:
        """Returns what is known of the open requests that their client calls so: one for each choice. None if
        there is no scheduler model now.
        """
        said = await self._ask(Order("status", client_id=client_id))
        return said.get("requests")

    async def _ask(self, order: Order, answer_s: float = ANSWER_S) -> dict[str, Any]:
        try:
            said: dict[str, Any] = await asyncio.to_thread(ask, self._run_directory, order, answer_s)
        except (OSError, RefusedOrderError):
            return {}
        return said


def _in_words(requests: list[dict[str, Any]]) -> str:
    """Of the first of them that waits."""
    for each in requests:
        if each["waits_for"]:
            return f"{each['waits_for']}; place={each['place']}; predicted_tokens={each['predicted_tokens']}"
    return ""
