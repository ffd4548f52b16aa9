"""Clients of Triton's own ports that look on while something dies."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from typing import Any

import grpc

from client import Client
from client.errors import GaplessError
from tests.support.server.serving import Answer


class HttpOnlooker:
    """Reads one answer over `generate_stream` from a thread of its own, and remembers how it ended."""

    def __init__(self, port: int, inputs: dict[str, Any]) -> None:
        self.answer = Answer()
        self.closed = ""  # how the connection broke
        self._port = port
        self._inputs = inputs
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def saw(self) -> str:
        """In the words of docs/operations.md."""
        if self.answer.error:
            return "an error"
        return "the whole answer" if self.answer.reasons else "a closed connection"

    def wait_for_text(self, timeout_s: float = 240) -> None:
        end_s = time.monotonic() + timeout_s
        while len(self.answer.text) < 20:
            assert time.monotonic() < end_s, f"no text: {self.answer} {self.closed}"
            time.sleep(0.005)

    def join(self, timeout_s: float = 500) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"this client still waits after {timeout_s} s: {self.answer}"

    def _read(self) -> None:
        try:
            with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", self._port, timeout=500)
            ) as connection:
                self._read_from(connection)
        except (OSError, http.client.HTTPException) as error:
            self.closed = repr(error)

    def _read_from(self, connection: http.client.HTTPConnection) -> None:
        connection.request(
            "POST", "/v2/models/ensemble/generate_stream", json.dumps({"stream": True, **self._inputs})
        )
        with connection.getresponse() as response:
            self.answer.status = response.status
            for line in response:
                if line.startswith(b"data: "):
                    self.answer.add_json(json.loads(line[len("data: ") :]))
        if self.answer.status != 200:
            self.answer.error = self.answer.error or "refused"


class GrpcOnlooker(HttpOnlooker):
    """The same over gRPC, with the project's client and without a second try."""

    def _read(self) -> None:
        inputs = dict(self._inputs)
        with Client(f"127.0.0.1:{self._port}") as client:
            try:
                for piece in client.stream(inputs.pop("text_input"), **inputs):
                    self.answer.add(piece.text, piece.finish_reason, 0)
            except GaplessError as error:
                if isinstance(error.__context__, grpc.RpcError):
                    self.closed = repr(error)
                else:
                    self.answer.error = str(error)
