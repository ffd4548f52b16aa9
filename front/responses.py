"""Sends an answer, whole or as a stream of events, and cancels the work when the client leaves.

Starlette tells of a client that has left only while something is sent: both kinds of answers watch the
connection themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from front.errors import ProblemError, json_response

log = logging.getLogger("gapless.front")

SIGN_EVERY_S = 15.0  # of life, in a silent stream
SIGN = b": still here\n\n"
END = b"data: [DONE]\n\n"
# readers that divide lines by Unicode would cut the JSON here
ESCAPED = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
INSIDE = ProblemError(500, "the front failed inside; its log says more", "failed", kind="server_error")


def event(body: Any, name: str = "") -> bytes:
    data: bytes = msgspec.json.encode(body)
    for character, escape in ESCAPED:
        if character in data:
            data = data.replace(character, escape)
    head = f"event: {name}\ndata: ".encode() if name else b"data: "
    return head + data + b"\n\n"


@dataclass(frozen=True, slots=True)
class Manner:
    """What an interface has of its own: the sign of life, an error as an event and as a whole answer, and the
    end of a stream.
    """

    sign: Callable[[], bytes] = lambda: SIGN
    failed: Callable[[ProblemError], bytes] = lambda problem: event(problem.body)
    failure: Callable[[ProblemError], Response] = ProblemError.response
    end: bytes = END


PLAIN = Manner()  # chats and completions


async def _left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first_of(
    work: asyncio.Task[Any], left: asyncio.Task[Any], live: Callable[[], Awaitable[float | None]]
) -> bool:
    """Waits for the first that ends, and cancels the other. `live` is called at once, and again after the
    seconds that it returns. Returns whether it is `work`.
    """
    try:
        done: set[asyncio.Task[Any]] = set()
        while not done:
            wait_s = await live()
            done, _ = await asyncio.wait((work, left), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        work.cancel()
        left.cancel()
        await asyncio.gather(work, left, return_exceptions=True)


async def _silent() -> None:
    """A whole answer shows no life before it is there."""


def _failure_of(work: asyncio.Task[Any]) -> ProblemError | None:
    """Returns why the work failed; None if it did not."""
    error = work.exception()
    if error is None or isinstance(error, ProblemError):
        return error
    log.error("an answer failed", exc_info=error)
    return INSIDE


class Whole(Response):
    """The answer that `work` returns, as JSON."""

    def __init__(self, work: Coroutine[Any, Any, Any], manner: Manner = PLAIN) -> None:
        super().__init__()
        self._work = work
        self._manner = manner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._made())
        if await _first_of(work, asyncio.create_task(_left(receive)), _silent):
            failure = _failure_of(work)
            made = self._manner.failure(failure) if failure else work.result()
            await made(scope, receive, send)

    async def _made(self) -> Response:
        return json_response(await self._work)


class Events(Response):
    """A stream of what `events` yields. Its head is sent with the first of them, or after SIGN_EVERY_S, so
    that an error before it has a status of its own.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], manner: Manner = PLAIN) -> None:
        # nginx, and proxies that know its header, keep a stream back otherwise
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._events = events
        self._manner = manner
        self._has_begun = self._has_ended = False
        self._sending = asyncio.Lock()  # a piece may come while the head is on its way
        self._sent_s = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._produce(send))
        if not await _first_of(work, asyncio.create_task(_left(receive)), partial(self._show_life, send)):
            return
        failure = _failure_of(work)
        if failure is not None and not self._has_begun:
            await self._manner.failure(failure)(scope, receive, send)
        elif failure is not None:
            await self._send(send, self._manner.failed(failure) + self._manner.end, more=False)

    async def _produce(self, send: Send) -> None:
        """The end leaves with the last piece, if no other task has a turn between them."""
        async with contextlib.aclosing(self._events) as events:
            async for each in events:
                await self._send(send, each)
        await self._send(send, self._manner.end, more=False)

    async def _show_life(self, send: Send) -> float:
        """Returns when to look again, in seconds."""
        silent_s = time.monotonic() - self._sent_s
        if silent_s < SIGN_EVERY_S:
            return SIGN_EVERY_S - silent_s
        await self._send(send, self._manner.sign())
        return SIGN_EVERY_S

    async def _send(self, send: Send, data: bytes, more: bool = True) -> None:
        self._sent_s = time.monotonic()
        async with self._sending:
            if self._has_ended:  # a sign of life that was late
                return
            self._has_ended = not more
            if not self._has_begun:
                self._has_begun = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": more})
