"""A client that leaves gives its slot back soon, also when nobody else is there whose answers could tell."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.server.serving import Gapless, wait_for

# ten seconds and more on the toy engine
LONG = {"text_input": "tell me everything", "max_tokens": 1900, "min_tokens": 1900}


def by_grpc(gapless: Gapless) -> Callable[[], None]:
    client = gapless.grpc()
    answer = client.ask(**LONG)
    client.read_until(lambda: answer.chunks > 2)
    return client.cancel


def by_dropping_the_connection(gapless: Gapless) -> Callable[[], None]:
    client = gapless.grpc()
    answer = client.ask(**LONG)
    client.read_until(lambda: answer.chunks > 2)
    return client.drop


def by_hanging_up(gapless: Gapless) -> Callable[[], None]:
    connection = http.client.HTTPConnection("127.0.0.1", gapless.http_port, timeout=30)
    connection.request("POST", "/v2/models/ensemble/generate_stream", json.dumps({**LONG, "stream": True}))
    connection.getresponse().read(20)
    return connection.close


def without_reading(gapless: Gapless) -> Callable[[], None]:
    """One answer in one piece: nothing is sent to the client before it is complete."""
    client = gapless.grpc()
    client.ask(**LONG, stream=False)
    return client.cancel


@pytest.mark.parametrize("leave", [by_grpc, by_dropping_the_connection, by_hanging_up, without_reading])
def test_a_lone_client_that_leaves_gives_its_slot_back(
    gapless: Gapless, leave: Callable[[Gapless], Callable[[], None]]
) -> None:
    wait_for(gapless.is_idle, 60)
    before = _outcomes(gapless)
    go = leave(gapless)
    wait_for(lambda: gapless.metrics()["gapless_slots_busy"] == 1, 60)
    go()
    wait_for(lambda: _outcomes(gapless) != before, 60)
    assert _outcomes(gapless) == before | {"cancelled": before["cancelled"] + 1}, "it did not run to its end"
    wait_for(gapless.is_idle, 60)


def _outcomes(gapless: Gapless) -> dict[str, Any]:
    metrics = gapless.metrics()
    return {
        name: metrics.get(f'gapless_requests_total{{outcome="{name}"}}', 0)
        for name in ("cancelled", "length")
    }
