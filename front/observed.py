"""What is done around every request: its id, its record, its line in the log, its place in the metrics, and
the headers that say how long to wait, and that the connection ends.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Collection

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from front.metrics import FrontMetrics
from front.queue import Queue
from front.record import CURRENT, TRACE, Record

log = logging.getLogger("gapless.requests")

REQUEST_ID = "x-request-id"
REQUEST_IDS = (REQUEST_ID, "request-id")  # OpenAI's, Anthropic's
SANE_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
SANE_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
WAITS_FOR = "x-gapless-waits-for"
OTHER = "other"


class Observed:
    """An ASGI application around another one."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: FrontMetrics,
        queue: Queue,
        routes: Collection[str],
        logs: bool,
        is_draining: Callable[[], bool],
    ) -> None:
        """`routes`: the paths that metrics name. `logs`: one line of JSON for each request. `is_draining`:
        whether the server takes no more requests.
        """
        self._app = app
        self._metrics = metrics
        self._queue = queue
        self._routes = frozenset(routes)
        self._logs = logs
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        asked, trace = headers.get(REQUEST_ID, ""), headers.get(TRACE, "")
        path = scope["path"]
        record = Record(
            request_id=asked if SANE_ID.fullmatch(asked) else secrets.token_hex(16),
            trace=trace if SANE_TRACE.fullmatch(trace) else "",
            route=path if path in self._routes else OTHER,
            method=scope["method"],
            gap=self._metrics.gap,
        )

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                await self._add_headers(record, MutableHeaders(scope=message))
            elif not message.get("more_body", False):
                record.is_whole = True
            await send(message)

        token = CURRENT.set(record)
        try:
            await self._app(scope, receive, send_noted)
        finally:
            CURRENT.reset(token)
            self._metrics.ended(record, time.monotonic() - record.began_s)
            if self._logs and path != "/health":
                log.info("%s", msgspec.json.encode(record.line()).decode())

    async def _add_headers(self, record: Record, headers: MutableHeaders) -> None:
        for name in REQUEST_IDS:
            headers[name] = record.request_id
        if record.status == 429:
            headers["retry-after"] = str(await self._queue.retry_after_s())
        if self._is_draining():  # the client's next request may find another server by a new connection
            headers["connection"] = "close"
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        if is_stream and not record.first_token_s:  # nothing has come, and the stream shows that it lives
            waits_for = await self._queue.waits_for(record.request_id)
            if waits_for:
                headers[WAITS_FOR] = waits_for
