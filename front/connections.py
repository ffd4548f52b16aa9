"""The connections of clients: uvicorn's, with what it lacks.

What one turn of the event loop writes leaves together; a piece of a stream does not go through h11; a body in
very many tiny chunks is refused before it has cost much; of a body that was refused before it had come no
more is read; and a client that reads nothing for UNREAD_S is taken to have left.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from front.errors import ProblemError
from front.failures import failure

TOGETHER_BYTES = 1 << 16  # more is not held until the end of a turn
UNREAD_S = 600.0  # an answer waits for its client to read for no longer
LINGER_S = 0.05  # a close with unread bytes resets the connection: what was written shall arrive before
# reading one takes 15 µs, whatever is in it
MANY_CHUNKS, TINY_BYTES = 1000, 64
INVALID = ProblemError(400, "the request is no valid HTTP", "invalid_http")
TINY = ProblemError(
    400,
    f"a body of more than {MANY_CHUNKS} chunks must have {TINY_BYTES} bytes in each on average",
    "tiny_chunks",
)


class Outgoing:
    """A connection's transport, which writes once a turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._is_lingering = False
        self.leaves_unread = False  # what comes until it is closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._num_bytes += len(data)
        if self._num_bytes > TOGETHER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts, self._num_bytes = [], 0

    def is_closing(self) -> bool:
        return self._is_lingering or self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        if not self.leaves_unread:
            self._transport.close()
        elif not self.is_closing():
            self._is_lingering = True
            self._transport.pause_reading()
            self._loop.call_later(LINGER_S, self._transport.close)


class Reader(h11.Connection):
    """Counts the chunks of a body."""

    num_chunks = num_bytes = 0

    @property
    def has_tiny_chunks(self) -> bool:
        return self.num_chunks > MANY_CHUNKS and self.num_bytes < TINY_BYTES * self.num_chunks

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.num_chunks = self.num_bytes = 0
        elif isinstance(event, h11.Data):
            self.num_chunks += event.chunk_end
            self.num_bytes += len(event.data)
            if self.has_tiny_chunks:
                raise h11.RemoteProtocolError(TINY.code)
        return event


class Connection(H11Protocol):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = self._reader = Reader(h11.SERVER)
        self._inner, self.app = self.app, self._answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._outgoing = Outgoing(cast(asyncio.Transport, transport))
        super().connection_made(cast(Any, self._outgoing))

    def _should_upgrade(self) -> bool:
        """HTTP goes on, as it may: uvicorn warns of it twice in the log."""
        return False

    def send_400_response(self, msg: str) -> None:
        """Of what is no HTTP, and of what shall not go on."""
        problem = TINY if self._reader.has_tiny_chunks else INVALID
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            made = failure(problem, self.scope["path"] if self.scope else "")
            head = h11.Response(status_code=made.status_code, headers=[*made.raw_headers, CLOSE_HEADER])
            for event in (head, h11.Data(data=bytes(made.body)), h11.EndOfMessage()):
                self._outgoing.write(self.conn.send(event) or b"")
        if self.cycle is not None:  # the application finds that the client has left
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._outgoing.leaves_unread = True
        self._outgoing.close()

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle, is_chunked = self.cycle, False

        async def send_quickly(message: Message) -> None:
            nonlocal is_chunked
            if is_chunked and message.get("more_body") and not (cycle.disconnected or self.flow.write_paused):
                if data := message["body"]:
                    self._outgoing.write(b"%x\r\n%b\r\n" % (len(data), data))
                return
            if message["type"] == "http.response.start":
                headers = message["headers"]
                is_chunked = _is_chunked(scope, headers)
                if message["status"] >= 400 and self.conn.their_state is h11.SEND_BODY:
                    message["headers"] = [*headers, CLOSE_HEADER]
                    self._outgoing.leaves_unread = True
            try:
                async with asyncio.timeout(UNREAD_S):
                    await send(message)
            except TimeoutError:
                self._outgoing.abort()

        await self._inner(scope, receive, send_quickly)


def _is_chunked(scope: Scope, headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether h11 sends a body with this head in chunks."""
    is_long = scope["http_version"] == "1.1" and scope["method"] != "HEAD"
    return is_long and all(name != b"content-length" for name, _ in headers)
