"""Reads the body of a request, up to a bound."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from front.errors import ProblemError
from python_backends.text.door.prompt_fields import MAX_PROMPT_BYTES

BODY_BYTES = 1 << 20  # of a body, besides twice the bytes of the longest prompt
MAX_BODY_BYTES = BODY_BYTES + 2 * MAX_PROMPT_BYTES


class TooLargeError(ProblemError):
    """A body has more bytes than the limit. `begun`: its first bytes."""

    def __init__(self, begun: bytes) -> None:
        super().__init__(413, f"the body must have at most {MAX_BODY_BYTES} bytes", "body_too_large")
        self.begun = begun


class Bodies:
    async def read(self, request: Request, most_dropped: int = 0) -> bytes:
        """`most_dropped`: of a body that is too large so many bytes are read before it is refused; a client
        that still sends sees that its connection is reset, and not why. Raises ProblemError.
        """
        if request.headers.get("content-encoding", "identity") != "identity":
            raise ProblemError(400, "content-encoding: must be identity", "unsupported_encoding")
        body, num_read, told = bytearray(), 0, request.headers.get("content-length", "0")
        if told.isdecimal() and int(told[:20]) > MAX_BODY_BYTES and not most_dropped:
            raise TooLargeError(b"")
        try:
            async for chunk in request.stream():
                num_read += len(chunk)
                if num_read <= MAX_BODY_BYTES:
                    body += chunk
                elif num_read > most_dropped:
                    break
        except ClientDisconnect:
            raise ProblemError(400, "the client left", "client_left") from None
        if num_read > MAX_BODY_BYTES:
            raise TooLargeError(bytes(body))
        return bytes(body)
