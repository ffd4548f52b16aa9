"""How tritonserver is started when the host has nothing left. A process that sleeps is in its place."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from python_backends.launcher import triton_server
from python_backends.launcher.run_files import RunFiles
from python_backends.launcher.triton_server import TritonServer
from python_backends.settings import Settings
from python_backends.watching.board import Board
from tests.support.clock import Clock


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TritonServer]:
    monkeypatch.setattr(triton_server, "locate", lambda *_: None)
    monkeypatch.setattr(triton_server, "command", lambda *_: ["sleep", "600"])
    monkeypatch.setattr(triton_server, "environment", lambda *_: dict(os.environ))
    settings = Settings()
    made = TritonServer(settings, RunFiles(tmp_path, settings), Board())
    yield made
    made.kill()


def test_it_is_tried_again_while_the_host_refuses_a_process_or_its_threads(
    server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr("time.monotonic", clock)

    def no_process(*_: object, **__: object) -> NoReturn:
        raise BlockingIOError("Resource temporarily unavailable")

    def no_thread(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as shortage:
        shortage.setattr(triton_server, "start_group", no_process)
        server.start()
        assert (server.is_running, server.has_ended) == (False, False), "it has not failed"
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", no_thread)
        clock.now_s += 1.0
        server.go_on()
        assert (server.is_running, server.has_ended) == (False, False)
    server.go_on()
    assert not server.is_running, "there are pauses"
    clock.now_s += 2.0
    server.go_on()
    assert server.is_running
    server.kill()
    assert server.has_ended


def test_the_connection_of_the_launcher_does_not_hold_up_its_end(server: TritonServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server._kept.port = listener.getsockname()[1]
        server._kept.connect()
        with listener.accept()[0] as connection:
            server.stop()
            assert connection.recv(1) == b""
