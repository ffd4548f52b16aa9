"""Hostile clients of the front: bodies without an end, compressed, deep, in a million chunks, and readers who
hardly read. Each gets its error, the memory of the front stays, and other streams are whole. Two processes
share the port.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from front.__main__ import BEAT_EVERY_S
from tests.support.server.serving import Gapless, wait_for
from tests.support.server.toy_model import write_toy_model
from tests.support.toy_engine import toy_settings

CHAT = "/v1/chat/completions"
MIB = 1 << 20
LARGE = 64 * MIB + 1
NUM_CHUNKS = 1_000_000
NUM_SLOW = 100
GROWTH_BYTES = 40 * MIB  # of both processes: buffers of sockets, of Python's allocator


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gapless]:
    model = write_toy_model(tmp_path_factory.mktemp("models") / "model")
    made = Gapless(**{**toy_settings(model, step_ms=2), "front.processes": 2})
    yield made
    assert made.stop() == 0, made.log


def fronts(served: Gapless) -> list[psutil.Process]:
    return [each for each in served.processes() if each.name().startswith("gapless-front")]


def memory(served: Gapless) -> int:
    return sum(each.memory_info().rss for each in fronts(served))


def post(
    served: Gapless, body: Any, headers: dict[str, str] | None = None, is_chunked: bool = False
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", served.front_port, timeout=120)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read what it refuses
        connection.request("POST", CHAT, body, headers or {}, encode_chunked=is_chunked)
    try:
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except ConnectionResetError:
        return 413, {"error": {"code": "body_too_large"}}  # closed before all was sent
    finally:
        connection.close()


def said_too_large(served: Gapless) -> tuple[int, Any]:
    """The head alone is enough for a refusal."""
    with socket.create_connection(("127.0.0.1", served.front_port), 60) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE}\r\n\r\n".encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, json.loads(answer.read())


def large_without_length(served: Gapless) -> tuple[int, Any]:
    blocks = (b" " * MIB for _ in range(LARGE // MIB + 1))
    return post(served, blocks, {"transfer-encoding": "chunked"}, is_chunked=True)


def gzip_bomb(served: Gapless) -> tuple[int, Any]:
    return post(served, gzip.compress(b" " * LARGE), {"content-encoding": "gzip"})


def deep_json(served: Gapless) -> tuple[int, Any]:
    return post(served, b"[" * 100_000 + b"]" * 100_000)


def a_million_chunks(served: Gapless) -> tuple[int, Any]:
    with socket.create_connection(("127.0.0.1", served.front_port), 120) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(NUM_CHUNKS // 10_000):
            connection.sendall(b"1\r\nx\r\n" * 10_000)
        connection.sendall(b"0\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, json.loads(answer.read())


TABLE: list[tuple[Callable[[Gapless], tuple[int, Any]], int, str]] = [
    (said_too_large, 413, "body_too_large"),
    (large_without_length, 413, "body_too_large"),
    (gzip_bomb, 400, "unsupported_encoding"),
    (deep_json, 400, "invalid_json"),
    (a_million_chunks, 400, "invalid_json"),
]


class Control:
    """A stream that is open meanwhile."""

    def __init__(self, served: Gapless) -> None:
        self._served = served
        self.text = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        body = {"messages": [{"role": "user", "content": "go on"}], "temperature": 0}
        status, said = post(self._served, json.dumps({**body, "max_tokens": 1500, "min_tokens": 1500}))
        assert status == 200
        self.text = said["choices"][0]["message"]["content"]

    def whole(self) -> str:
        self._thread.join(120)
        return self.text


@pytest.fixture(scope="module")
def undisturbed(served: Gapless) -> str:
    wait_for(lambda: len(fronts(served)) == 2, 30)
    return Control(served).whole()


@pytest.mark.parametrize(
    ("attack", "status", "code"), TABLE, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_hostile_body_gets_its_error_and_no_memory(
    served: Gapless,
    undisturbed: str,
    attack: Callable[[Gapless], tuple[int, Any]],
    status: int,
    code: str,
) -> None:
    attack(served)  # what is kept for the first one is kept once
    before, control = memory(served), Control(served)
    for _ in range(3):
        got, said = attack(served)
        assert (got, said["error"]["code"]) == (status, code)
    assert memory(served) - before < GROWTH_BYTES
    assert control.whole() == undisturbed != ""


def test_a_hundred_clients_that_hardly_read_cost_others_nothing(served: Gapless, undisturbed: str) -> None:
    before = memory(served)
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "x"}],
            **{"stream": True, "max_tokens": 300, "min_tokens": 300, "logprobs": True, "top_logprobs": 20},
        }
    )
    with contextlib.ExitStack() as slow:
        connections = []
        for _ in range(NUM_SLOW):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.callback(connection.close)
            connection.connect(("127.0.0.1", served.front_port))
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall((head + body).encode())
            connections.append(connection)
        control = Control(served)
        for _ in range(5):
            for connection in connections:
                connection.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    connection.recv(1)
            time.sleep(1)
        assert control.whole() == undisturbed
        assert memory(served) - before < GROWTH_BYTES + NUM_SLOW * MIB // 2
    wait_for(served.is_idle, 120)


def test_both_processes_serve_and_show_one_page_of_metrics(served: Gapless, undisturbed: str) -> None:
    def count() -> float:
        connection = http.client.HTTPConnection("127.0.0.1", served.front_port, timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        name = 'gapless_front_request_seconds_count{model_name="model"} '
        return float(next(line for line in text.splitlines() if line.startswith(name)).removeprefix(name))

    def settled() -> float:
        """When each process has told the other of all requests so far."""
        told, found = -1.0, count()
        while told != found:
            time.sleep(3 * BEAT_EVERY_S)
            told, found = found, count()
        return found

    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
    before = settled()
    for _ in range(20):
        assert post(served, body)[0] == 200
    wait_for(lambda: count() == before + 20, 10)
    taken = [each.cpu_times().user for each in fronts(served)]
    assert len(taken) == 2
    fronts(served)[0].kill()
    wait_for(lambda: len(fronts(served)) == 2, 30)
    for _ in range(5):
        assert wait_for(lambda: post(served, body)[0] == 200, 30)
