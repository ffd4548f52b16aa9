"""Many streams of server-sent events over HTTP, closed loop, read by one thread: the client's side of the
benchmarks that serve.

It uses plain sockets and parses an answer only when it has ended: a Python gRPC client takes 0.2 ms per
response on the processors that are measured, this client 0.06. It asks our server, by Triton's endpoint and
by OpenAI's, and the peers that answer over HTTP.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.common.work import Timing, Work

Event = dict[str, Any]
END = b"\r\n0\r\n\r\n"  # of a chunked answer; a head may end with the zero of a number


class HttpStreams:
    """Many streams. `num_tokens` returns how many tokens an event has, `is_last` whether the answer ends with
    it.
    """

    def __init__(
        self,
        port: int,
        path: str,
        num_connections: int,
        num_tokens: Callable[[Event], int],
        is_last: Callable[[Event], bool],
    ) -> None:
        self._head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._num_tokens, self._is_last = num_tokens, is_last
        self._ready, self._port = selectors.DefaultSelector(), port
        self._free = [self._connected() for _ in range(num_connections)]
        # the answer on a connection: its parts and when each arrived
        self._came: dict[socket.socket, list[tuple[float, bytes]]] = {}
        self._asked: dict[socket.socket, Timing] = {}
        self._sent: dict[socket.socket, bytes] = {}
        self._has_answered: set[socket.socket] = set()
        self.num_events = 0

    def _connected(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ready.register(connection, selectors.EVENT_READ)
        return connection

    def close(self) -> None:
        """Closes the connections: a server that should end waits for clients that are still connected."""
        self._ready.close()
        for connection in (*self._free, *self._asked):
            connection.close()

    def run(self, bodies: Sequence[Event], due_s: Sequence[float] | None = None) -> list[Timing]:
        """Submits each when a connection is free, but not before `due_s` seconds after the start."""
        timings: list[Timing] = []
        due_s, began_s = due_s or [0.0] * len(bodies), time.perf_counter()
        while len(timings) < len(bodies) or self._asked:
            while (
                self._free
                and len(timings) < len(bodies)
                and began_s + due_s[len(timings)] <= time.perf_counter()
            ):
                timings.append(self._submit(bodies[len(timings)]))
            wait_s = (
                began_s + due_s[len(timings)] - time.perf_counter()
                if self._free and len(timings) < len(bodies)
                else None
            )
            for key, _ in self._ready.select(wait_s):
                assert isinstance(key.fileobj, socket.socket)
                self._take(key.fileobj)
        return timings

    def _submit(self, fields: Event) -> Timing:
        connection, timing = self._free.pop(), Timing(time.perf_counter(), [])
        body = json.dumps(fields).encode()
        self._send(connection, timing, f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return timing

    def _send(self, connection: socket.socket, timing: Timing, request: bytes) -> None:
        self._asked[connection], self._came[connection], self._sent[connection] = timing, [], request
        with contextlib.suppress(ConnectionError):  # closed by the server, which `_take` finds
            connection.sendall(request)

    def _take(self, connection: socket.socket) -> None:
        """Reads the data that has arrived on a connection; handles the end of the answer if it is there. A
        server closes a connection that has been idle for some seconds: a new one takes its place. llama.cpp's
        closes it after every streamed answer: what was sent meanwhile is sent again.
        """
        try:
            part = connection.recv(1 << 16)
        except ConnectionError:
            part = b""
        if connection in self._free:
            self._drop(connection)
            self._free[self._free.index(connection)] = self._connected()
            return
        came = self._came[connection]
        if not part and not came and connection in self._has_answered:
            self._drop(connection)
            self._send(self._connected(), self._asked.pop(connection), self._sent.pop(connection))
            return
        came.append((time.perf_counter(), part))
        if not part:
            raise RuntimeError(
                f"the server closed the connection of a request, after {b''.join(each for _, each in came)!r}"
            )
        if part.endswith(END) or (
            len(part) < len(END) and b"".join(each for _, each in came[-len(END) :]).endswith(END)
        ):
            self._read(came, self._asked.pop(connection))
            self._has_answered.add(connection)
            self._free.append(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._ready.unregister(connection)
        self._has_answered.discard(connection)
        connection.close()

    def _read(self, came: list[tuple[float, bytes]], timing: Timing) -> None:
        """Reads the events of an answer. Each has the time at which its end arrived."""
        begun = b""
        for now, part in came:
            *events, begun = (begun + part).split(b"\n\n")
            for event in events:
                data = event.partition(b"data: ")[2]
                if data in (b"", b"[DONE]"):  # a comment, and the end of OpenAI's streams
                    continue
                chunk = json.loads(data)
                self.num_events += 1
                if "error" in chunk:
                    raise RuntimeError(chunk["error"])
                timing.tokens += [now] * self._new_tokens(chunk, timing)
                self._keep(chunk, timing)
                if self._is_last(chunk):
                    timing.ended = now

    def _new_tokens(self, chunk: Event, timing: Timing) -> int:
        """Returns how many tokens an event brings to those of `timing`."""
        return self._num_tokens(chunk)

    def _keep(self, chunk: Event, timing: Timing) -> None:
        """Records the content of an event. Does nothing here; subclasses for a kind of server may."""


class EnsembleStreams(HttpStreams):
    """Streams of the ensemble's own HTTP endpoint."""

    def __init__(self, port: int, num_connections: int, num_tokens: Callable[[Event], int]) -> None:
        super().__init__(
            port,
            "/v2/models/ensemble/generate_stream",
            num_connections,
            num_tokens,
            lambda event: "finish_reason" in event,
        )

    def ask(self, texts: Sequence[str], work: Work, due_s: Sequence[float] | None = None) -> list[Timing]:
        asks = zip(texts, work.jobs, strict=True)
        return self.run(
            [{"text_input": text, "max_tokens": job.max_tokens, "stream": True} for text, job in asks], due_s
        )

    def _keep(self, chunk: Event, timing: Timing) -> None:
        timing.text += chunk["text_output"]


class OpenAIStreams(HttpStreams):
    """Streams of `/v1/completions` or `/v1/chat/completions`. Each chunk with text counts as one token."""

    def __init__(self, port: int, path: str, num_connections: int) -> None:
        super().__init__(
            port,
            path,
            num_connections,
            lambda event: bool(_text_of(event["choices"][0])),
            lambda event: event["choices"][0]["finish_reason"] is not None,
        )


def _text_of(choice: Event) -> str | None:
    text: str | None = choice["delta"].get("content") if "delta" in choice else choice["text"]
    return text
