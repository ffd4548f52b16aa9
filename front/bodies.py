"""Reads the body of a request, up to a bound."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from front.errors import ProblemError
from python_backends.text.door.prompt_fields import MAX_PROMPT_BYTES

BODY_BYTES = 1 << 20  # of a body, besides twice the bytes of the longest prompt
MAX_BODY_BYTES = BODY_BYTES + 2 * MAX_PROMPT_BYTES


class Bodies:
    async def read(self, request: Request) -> bytes:
        """Raises ProblemError."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise ProblemError(400, "content-encoding: must be identity", "unsupported_encoding")
        body, told = bytearray(), request.headers.get("content-length", "0")
        if told.isdecimal() and int(told[:20]) > MAX_BODY_BYTES:
            raise self._too_large()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise self._too_large()
        except ClientDisconnect:
            raise ProblemError(400, "the client left", "client_left") from None
        return bytes(body)

    def _too_large(self) -> ProblemError:
        return ProblemError(413, f"the body must have at most {MAX_BODY_BYTES} bytes", "body_too_large")
