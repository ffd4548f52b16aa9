"""Answers one request of a batch, as if a client had sent it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message

from front.batches.store import Line
from front.errors import ProblemError, refused
from front.fields import read_object
from front.record import CURRENT, Record
from front.responses import INSIDE

log = logging.getLogger("gapless.front")

LEAST = (1 << 31) - 1  # OpenAI's clients' priority: smaller goes first
AGAIN = (429, 503)  # the server has no place for it now, or is started again
AGAIN_S = 1.0


class Asked:
    """`answer`: of the endpoint, from a body."""

    def __init__(self, answer: Callable[[bytes], Response]) -> None:
        self._answer = answer

    async def entry(self, line: Line) -> tuple[bool, dict[str, Any]]:
        """Returns whether it was answered, and its line in the file of answers, or of errors."""
        request_id = secrets.token_hex(16)
        CURRENT.set(Record(request_id=request_id))
        status, body = await self._asked(line)
        response = {"status_code": status, "request_id": request_id, "body": msgspec.json.decode(body)}
        return status == 200, entry_of(line, response, None)

    async def _asked(self, line: Line) -> tuple[int, bytes]:
        """Again while the server has no place for it, or is started again."""
        while True:
            status, body = await self._sent(line)
            if status not in AGAIN:
                return status, body
            await asyncio.sleep(AGAIN_S)

    async def _sent(self, line: Line) -> tuple[int, bytes]:
        try:
            response = self._answer(_body(line))
        except ProblemError as problem:
            response = problem.response()
        except Exception:
            log.exception("a request of a batch failed")
            response = INSIDE.response()
        status, parts = 0, bytearray()

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.extend(message.get("body", b""))

        await response({"type": "http"}, _stays, send)
        return status, bytes(parts)


def entry_of(line: Line, response: Any, error: Any) -> dict[str, Any]:
    name = f"batch_req_{secrets.token_hex(12)}"
    return {"id": name, "custom_id": line.custom_id, "response": response, "error": error}


def _body(line: Line) -> bytes:
    """With the least priority. Raises ProblemError."""
    body = read_object(bytes(line.body))
    if body.get("stream"):
        raise refused("stream", " = true: must be false in a batch")
    return msgspec.json.encode({**body, "priority": LEAST})


async def _stays() -> Message:
    """The client of a batch does not leave."""
    await asyncio.Event().wait()
    raise AssertionError("no one sets the event")
