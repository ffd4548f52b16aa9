"""Bodies that are too large, compressed, deep or in a million chunks, for the front."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

CHAT = "/v1/chat/completions"
MIB = 1 << 20
LARGE = 64 * MIB + 1
NUM_CHUNKS = 1_000_000

Headers = Mapping[str, str]
Attack = Callable[[int], tuple[int, Any]]  # port to status and body


def post(port: int, body: Any, headers: Headers | None = None) -> tuple[int, Any]:
    """An iterator of bytes is sent in chunks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read what it refuses
        connection.request("POST", CHAT, body, headers or {})
    try:
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except ConnectionResetError:
        return 413, {"error": {"code": "body_too_large"}}  # closed before all was sent
    finally:
        connection.close()


def said_too_large(port: int) -> tuple[int, Any]:
    """The head alone is enough for a refusal."""
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(head({"content-length": str(LARGE)}))
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, json.loads(answer.read())


def large_without_length(port: int) -> tuple[int, Any]:
    return post(port, (b" " * MIB for _ in range(LARGE // MIB + 1)))


@cache
def bomb() -> bytes:
    return gzip.compress(b" " * LARGE)


def gzip_bomb(port: int) -> tuple[int, Any]:
    return post(port, bomb(), {"content-encoding": "gzip"})


def deep_json(port: int) -> tuple[int, Any]:
    return post(port, b"[" * 100_000 + b"]" * 100_000)


def a_million_chunks(port: int) -> tuple[int, Any]:
    with socket.create_connection(("127.0.0.1", port), 120) as connection:
        connection.sendall(head({"transfer-encoding": "chunked"}))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(NUM_CHUNKS // 10_000):
                connection.sendall(b"1\r\nx\r\n" * 10_000)
            connection.sendall(b"0\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, json.loads(answer.read())


def head(headers: Headers) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode()


# with the status and the code of the error
ATTACKS: tuple[tuple[Attack, int, str], ...] = (
    (said_too_large, 413, "body_too_large"),
    (large_without_length, 413, "body_too_large"),
    (gzip_bomb, 400, "unsupported_encoding"),
    (deep_json, 400, "invalid_json"),
    (a_million_chunks, 400, "tiny_chunks"),
)
