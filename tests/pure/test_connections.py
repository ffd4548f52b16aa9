"""Connections are refused while tritonserver has few files left, and it keeps its listening sockets."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from typing import NoReturn

import pytest

from python_backends.launcher import connections
from python_backends.launcher.connections import REFUSAL, ConnectionBound, allow_files, kept_free, refuse
from python_backends.linux import open_files


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def connect(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname(), timeout=10)


def test_waiting_connections_get_the_refusal_and_the_socket_goes_on_listening(
    listener: socket.socket,
) -> None:
    with connect(listener) as asks, connect(listener) as idles:
        asks.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert refuse({listener.fileno(): REFUSAL}, 0.05) == 2
        for client in (asks, idles):
            answer = client.recv(4096)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"too many open connections" in answer
            assert client.recv(4096) == b""
    with connect(listener) as later, listener.accept()[0] as taken:
        assert taken.getpeername() == later.getsockname()


def test_without_a_refusal_to_send_a_connection_is_closed(listener: socket.socket) -> None:
    with connect(listener) as client:
        assert refuse({listener.fileno(): b""}, 0.05) == 1
        assert client.recv(4096) == b""


def test_listening_sockets_of_a_server_are_found_by_their_ports(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    bound = ConnectionBound(os.getpid(), {port: REFUSAL}, 256)
    assert bound._find() == {listener.fileno(): REFUSAL}


def test_they_are_shared_with_the_launcher_for_a_while_only(listener: socket.socket) -> None:
    bound = ConnectionBound(os.getpid(), {listener.getsockname()[1]: REFUSAL}, 256)
    before = open_files.count(os.getpid())
    with connect(listener) as client:
        try:
            with open_files.borrowed(os.getpid(), listener.fileno()):
                pass
        except PermissionError:
            pytest.skip("this container forbids it")
        bound._refuse()
        assert client.recv(4096).startswith(b"HTTP/1.1 503 ")
    assert open_files.count(os.getpid()) == before


@pytest.mark.parametrize(("limit", "warned"), [(256, True), (1200, True), (1300, False), (65536, False)])
def test_a_limit_that_is_too_low_for_the_open_requests_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: int, warned: bool
) -> None:
    monkeypatch.setattr(connections.open_files, "raise_limit", lambda wanted: min(limit, wanted))
    with caplog.at_level(logging.WARNING):
        assert allow_files(max_open=1024) == limit
    assert ("streams.max_open = 1024" in caplog.text) == warned


def test_more_open_requests_than_usual_ask_for_more_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.open_files, "raise_limit", lambda wanted: wanted)
    assert allow_files(max_open=1 << 20) > 1 << 20


def test_some_files_are_always_kept_free() -> None:
    assert [kept_free(limit) for limit in (64, 256, 1024, 65536)] == [8, 32, 64, 64]


def test_the_bound_outlives_a_shortage_of_the_launcher_and_ends_with_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [OSError(errno.EMFILE, "Too many open files"), FileNotFoundError()]

    def count(_: int) -> NoReturn:
        raise answers.pop(0)

    monkeypatch.setattr(open_files, "count", count)
    monkeypatch.setattr(connections, "LOOK_EVERY_S", 0.0)
    ConnectionBound(1, {}, 100).run()
    assert not answers
