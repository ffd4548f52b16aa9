"""Connections of clients: what leaves together, what is refused, and when a connection is closed."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Message

from client.wire import Piece
from front import connections
from front.connections import MANY_CHUNKS, TINY_BYTES, TOGETHER_BYTES, Outgoing
from front.responses import END, Events
from tests.pure.front.conftest import MESSAGES
from tests.support.ensemble import Ensemble, Front
from tests.support.server.serving import wait_for

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY = json.dumps({"prompt": "a", "stream": True}).encode()


def head(path: str, *lines: str, version: str = "1.1") -> bytes:
    return "\r\n".join((f"POST {path} HTTP/{version}", "host: x", *lines, "", "")).encode()


def connected(front: Front) -> socket.socket:
    return socket.create_connection(("127.0.0.1", front.port), 30)


def answer_on(connection: socket.socket) -> tuple[int, http.client.HTTPResponse, bytes]:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, answer, answer.read()


def is_closed(connection: socket.socket) -> bool:
    """By the server, within the timeout of the connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


class Transport:
    """That remembers what is written and done."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def pause_reading(self) -> None:
        self.done.append("pause")

    def close(self) -> None:
        self.done.append("close")

    def is_closing(self) -> bool:
        return "close" in self.done


def test_a_client_that_reads_nothing_is_taken_to_have_left(
    front: Front, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """More is written than the kernel takes."""
    monkeypatch.setattr(connections, "UNREAD_S", 0.3)
    ensemble.pieces = (*[Piece("x" * 1_000_000)] * 24, Piece("", "stop"))
    with caplog.at_level(logging.INFO, "gapless.requests"), connected(front) as connection:
        connection.sendall(head(COMPLETIONS, f"content-length: {len(BODY)}") + BODY)
        wait_for(lambda: caplog.messages, 30)
    assert json.loads(caplog.messages[0])["left"]


def test_what_one_turn_writes_leaves_together() -> None:
    async def write() -> list[Any]:
        transport = Transport()
        outgoing = Outgoing(transport)  # type: ignore[arg-type]
        for data in (b"a", b"", b"b"):
            outgoing.write(data)
        assert not transport.done
        await asyncio.sleep(0)
        outgoing.write(b"c" * (TOGETHER_BYTES + 1))
        outgoing.write(b"d")
        outgoing.close()
        return transport.done

    assert asyncio.run(write()) == [b"ab", b"c" * (TOGETHER_BYTES + 1), b"d", "close"]


def test_a_connection_with_unread_bytes_is_closed_after_a_while_and_not_read() -> None:
    async def write() -> tuple[list[Any], list[Any]]:
        transport = Transport()
        outgoing = Outgoing(transport)  # type: ignore[arg-type]
        outgoing.leaves_unread = True
        outgoing.write(b"a")
        outgoing.close()
        outgoing.close()
        assert outgoing.is_closing()
        soon = list(transport.done)
        await asyncio.sleep(0.2)
        return soon, transport.done

    soon, late = asyncio.run(write())
    assert soon == [b"a", "pause"]
    assert late == [b"a", "pause", "close"]


@pytest.mark.parametrize(("path", "is_anthropic"), [(CHAT, False), ("/v1/messages", True)])
def test_a_body_in_very_many_tiny_chunks_is_refused_before_its_end(
    front: Front, path: str, is_anthropic: bool
) -> None:
    with connected(front) as connection:
        connection.sendall(head(path, "transfer-encoding: chunked") + b"1\r\n \r\n" * (MANY_CHUNKS + 1))
        status, answer, body = answer_on(connection)
        assert is_closed(connection)
    said = json.loads(body)
    assert (status, answer.headers["connection"]) == (400, "close")
    assert said.get("type") == ("error" if is_anthropic else None)
    assert f"{TINY_BYTES} bytes" in said["error"]["message"]
    assert is_anthropic or said["error"]["code"] == "tiny_chunks"


def test_a_body_in_many_chunks_that_are_not_tiny_is_taken(front: Front) -> None:
    body = json.dumps({"messages": MESSAGES}).encode()
    chunk = b"%x\r\n%b\r\n" % (4 * TINY_BYTES, b" " * 4 * TINY_BYTES)
    last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with connected(front) as connection:
        for _ in range(2):  # each body is counted by itself
            connection.sendall(head(CHAT, "transfer-encoding: chunked") + b"1\r\n \r\n" * (MANY_CHUNKS // 2))
            connection.sendall(chunk * (2 * MANY_CHUNKS) + last)
            assert answer_on(connection)[0] == 200


def test_a_body_that_is_refused_before_it_has_come_is_not_read_on(front: Front) -> None:
    block = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
    sent = 0
    with connected(front) as connection:
        connection.sendall(head(CHAT, "transfer-encoding: chunked"))
        began_s = time.monotonic()
        while time.monotonic() < began_s + 60:
            try:
                connection.sendall(block)
                sent += 1
            except (BrokenPipeError, ConnectionResetError):
                break
        status, answer, body = answer_on(connection)
        assert is_closed(connection)
    assert (status, answer.headers["connection"]) == (413, "close")
    assert json.loads(body)["error"]["code"] == "body_too_large"
    assert sent < 60


def test_a_body_that_has_come_keeps_its_connection_whatever_the_answer(front: Front) -> None:
    with connected(front) as connection:
        for body, expected in ((b"x", 400), (BODY, 200), (b"x", 400)):
            connection.sendall(head(COMPLETIONS, f"content-length: {len(body)}") + body)
            assert answer_on(connection)[0] == expected


def test_what_is_no_http_gets_an_error_in_our_shape(front: Front) -> None:
    with connected(front) as connection:
        connection.sendall(b"what?\r\n\r\n")
        status, _, body = answer_on(connection)
        assert is_closed(connection)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")


def test_two_requests_at_once_are_answered_one_after_the_other(front: Front) -> None:
    request = head(COMPLETIONS, f"content-length: {len(BODY)}") + BODY
    with connected(front) as connection:
        connection.sendall(request * 2)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        came = answer.read()
        while came.count(b"[DONE]") + came.count(b"HTTP/1.1 200") < 3:
            came += connection.recv(1 << 16)
    assert came.count(b"[DONE]") == 2


def test_a_client_that_offers_another_protocol_is_answered_without_a_word_in_the_log(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(front) as connection:
        offer = ("connection: upgrade, http2-settings", "upgrade: h2c", f"content-length: {len(BODY)}")
        connection.sendall(head(COMPLETIONS, *offer) + BODY)
        assert answer_on(connection)[0] == 200
    assert "pgrade" not in caplog.text


def test_a_client_of_an_older_http_gets_a_stream_without_chunks(front: Front) -> None:
    with connected(front) as connection:
        connection.sendall(head(COMPLETIONS, f"content-length: {len(BODY)}", version="1.0") + BODY)
        status, answer, body = answer_on(connection)
    assert (status, answer.headers["transfer-encoding"]) == (200, None)
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


def test_the_head_leaves_with_the_first_piece_and_the_end_with_the_last(
    front: Front, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    flush = Outgoing._flush

    def noted(self: Outgoing) -> None:
        written.extend([b"".join(self._parts)] * bool(self._parts))
        flush(self)

    monkeypatch.setattr(Outgoing, "_flush", noted)
    ensemble.pieces = (Piece("a", "stop", num_input_tokens=1, num_output_tokens=1),)
    with connected(front) as connection:
        connection.sendall(head(COMPLETIONS, f"content-length: {len(BODY)}") + BODY)
        assert answer_on(connection)[2].endswith(b"data: [DONE]\n\n")
    assert len(written) == 1
    assert written[0].startswith(b"HTTP/1.1 200")
    assert written[0].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def _late_sign() -> list[bytes]:
    sent: list[bytes] = []
    drained = asyncio.Event()

    async def one() -> AsyncGenerator[bytes, None]:
        yield b"text"

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            if not message["more_body"]:
                await drained.wait()
            sent.append(message["body"])

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    answer = Events(one())
    task = asyncio.create_task(answer({"type": "http"}, receive, send))
    while not sent:
        await asyncio.sleep(0)
    sign = asyncio.create_task(answer._send(send, b"sign"))
    await asyncio.sleep(0)
    drained.set()
    await asyncio.gather(task, sign)
    return sent


def test_no_sign_of_life_follows_the_end_of_a_stream() -> None:
    assert asyncio.run(_late_sign()) == [b"text", END]
