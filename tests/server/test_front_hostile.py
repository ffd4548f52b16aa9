"""Hostile clients of the front: bodies without an end, compressed, deep, in a million chunks, and readers who
hardly read. Each gets its error, the memory of the front stays, and other streams are whole. Two processes
share the port.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from front.__main__ import BEAT_EVERY_S
from tests.support.server.hostile_bodies import ATTACKS, CHAT, MIB, Attack, post
from tests.support.server.serving import Gapless, wait_for
from tests.support.server.toy_model import write_toy_model
from tests.support.toy_engine import toy_settings

NUM_SLOW = 100
GROWTH_BYTES = 40 * MIB  # of both processes: buffers of sockets, of Python's allocator


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gapless]:
    model = write_toy_model(tmp_path_factory.mktemp("models") / "model")
    with Gapless(**{**toy_settings(model, step_ms=2), "front.processes": 2}) as made:
        yield made


def fronts(served: Gapless) -> list[psutil.Process]:
    return [each for each in served.processes() if each.name().startswith("gapless-front")]


def memory(served: Gapless) -> int:
    return sum(each.memory_info().rss for each in fronts(served))


class Control:
    """A stream that is open meanwhile."""

    def __init__(self, served: Gapless) -> None:
        self._port = served.front_port
        self.text = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        body = {"messages": [{"role": "user", "content": "go on"}], "temperature": 0}
        status, said = post(self._port, json.dumps({**body, "max_tokens": 1500, "min_tokens": 1500}))
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
    ("attack", "status", "code"), ATTACKS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_hostile_body_gets_its_error_and_no_memory(
    served: Gapless,
    undisturbed: str,
    attack: Attack,
    status: int,
    code: str,
) -> None:
    attack(served.front_port)  # what is kept for the first one is kept once
    before, control = memory(served), Control(served)
    for _ in range(3):
        got, said = attack(served.front_port)
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
        assert post(served.front_port, body)[0] == 200
    wait_for(lambda: count() == before + 20, 10)
    taken = [each.cpu_times().user for each in fronts(served)]
    assert len(taken) == 2
    fronts(served)[0].kill()
    wait_for(lambda: len(fronts(served)) == 2, 30)
    for _ in range(5):
        assert wait_for(lambda: post(served.front_port, body)[0] == 200, 30)
