"""When a server that drains has no open requests any more."""

from __future__ import annotations

import pytest

from python_backends.launcher.open_requests import COUNTS, OpenRequests
from python_backends.watching.metrics import TIMESTAMP


class Server:
    """Writes numbers as it is told."""

    has = True

    def __init__(self) -> None:
        self.written: dict[str, float] = {}

    def has_streams(self) -> bool:
        return self.has

    def numbers(self, limit_s: float) -> dict[str, float]:
        return self.written

    def write(self, time_s: float, running: int = 0, waiting: int = 0) -> None:
        self.written = {TIMESTAMP: time_s, **dict(zip(COUNTS, (running, waiting), strict=True))}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def requests(server: Server) -> OpenRequests:
    return OpenRequests(server)  # type: ignore[arg-type]


def test_numbers_from_before_the_first_look_say_nothing(requests: OpenRequests, server: Server) -> None:
    server.write(100.0)
    assert requests.may_be_there(1.0)
    server.write(101.0, running=1)
    assert requests.may_be_there(1.0)
    server.write(102.0, waiting=1)
    assert requests.may_be_there(1.0)
    server.write(103.0)
    assert not requests.may_be_there(1.0)


def test_a_clock_that_is_set_back_makes_no_drain_longer(requests: OpenRequests, server: Server) -> None:
    server.write(1000.0)
    assert requests.may_be_there(1.0)
    server.write(400.0)
    assert not requests.may_be_there(1.0)


def test_a_server_that_does_not_answer_may_have_some(requests: OpenRequests, server: Server) -> None:
    assert requests.may_be_there(1.0)
    server.write(100.0)
    assert requests.may_be_there(1.0), "this may have been written before the first look"
    server.write(101.0)
    assert not requests.may_be_there(1.0)


def test_a_server_without_streams_has_none(requests: OpenRequests, server: Server) -> None:
    server.has = False
    assert not requests.may_be_there(1.0)
