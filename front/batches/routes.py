"""/v1/batches."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from front.batches.store import Batch, BatchStore, Counts, read_requests
from front.bodies import Bodies
from front.errors import ProblemError, json_response, refused
from front.fields import read_body
from front.files.store import Files
from front.pages import page_of

MOST_LINES = 50_000
MOST_METADATA = 16
WINDOW = re.compile(r"([1-9][0-9]{0,3})h")


class BatchAsk(Struct, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class BatchRoutes:
    def __init__(self, store: BatchStore, files: Files, bodies: Bodies, endpoints: Collection[str]) -> None:
        self._store = store
        self._files = files
        self._bodies = bodies
        self._endpoints = endpoints
        self.routes = [
            Route("/v1/batches", self._create, methods=["POST"]),
            Route("/v1/batches", self._list),
            Route("/v1/batches/{name}", self._of_batch(store.find)),
            Route("/v1/batches/{name}/cancel", self._of_batch(store.cancel), methods=["POST"]),
        ]

    async def _create(self, request: Request) -> Response:
        ask = read_body(await self._bodies.read(request), BatchAsk)
        if ask.endpoint not in self._endpoints:
            said = f" = {ask.endpoint[:40]!r}: must be one of {', '.join(self._endpoints)}"
            raise refused("endpoint", said)
        if (window := WINDOW.fullmatch(ask.completion_window)) is None:
            said = f" = {ask.completion_window[:40]!r}: must be a number of hours up to 9999, as 24h"
            raise refused("completion_window", said)
        if len(ask.metadata or ()) > MOST_METADATA:
            raise refused("metadata", f": must have at most {MOST_METADATA} names")
        return json_response(await asyncio.to_thread(self._made, ask, int(window[1])))

    def _made(self, ask: BatchAsk, hours: int) -> Batch:
        """Raises ProblemError."""
        content = self._files.path(self._files.find(ask.input_file_id, "input_file_id").id)
        return self._store.create(
            content,
            hours,
            endpoint=ask.endpoint,
            input_file_id=ask.input_file_id,
            completion_window=ask.completion_window,
            request_counts=Counts(total=_num_requests(content, ask.endpoint)),
            metadata=ask.metadata,
        )

    async def _list(self, request: Request) -> Response:
        return json_response(page_of(await asyncio.to_thread(self._store.all), request))

    def _of_batch(self, work: Callable[[str], Batch]) -> Any:
        async def endpoint(request: Request) -> Response:
            return json_response(await asyncio.to_thread(work, request.path_params["name"]))

        return endpoint


def _num_requests(content: Path, endpoint: str) -> int:
    """Checks each line of a file of requests. Raises ProblemError, which names the line."""
    known: set[str] = set()
    try:
        for line in read_requests(content, endpoint):
            if line.custom_id in known:
                raise ValueError(f"custom_id = {line.custom_id[:64]!r}: it is there twice")
            known.add(line.custom_id)
            if len(known) > MOST_LINES:
                raise ValueError(f"it must have at most {MOST_LINES} lines")
        if not known:
            raise ValueError("it must have at least one line")
    except ValueError as error:
        said = f"input_file_id: {error}"
        raise ProblemError(400, said, "invalid_input_file", "input_file_id") from None
    return len(known)
