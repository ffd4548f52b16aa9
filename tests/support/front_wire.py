"""Bodies and events as they are on the wire."""

from __future__ import annotations

import http.client
import json
from typing import Any

from tests.support.ensemble import Front

Named = tuple[str, Any]  # an event's name, and its data


def ask(
    front: Front, path: str, body: Any = None, method: str = "", **headers: str
) -> tuple[int, dict[str, str], Any]:
    status, head, text = sent(front, path, body, method, **headers)
    return status, head, json.loads(text)


def sent(
    front: Front, path: str, body: Any = None, method: str = "", **headers: str
) -> tuple[int, dict[str, str], str]:
    """By default POST, and GET without a body."""
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method or ("GET" if data is None else "POST"), path, data, named)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def events(front: Front, path: str, body: Any) -> list[Named]:
    """Of a stream in which each event has a name, which its data repeat."""
    text = sent(front, path, {**body, "stream": True})[2]
    assert text.endswith("\n\n"), text
    found = []
    for each in text.removesuffix("\n\n").split("\n\n"):
        name, data = each.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert [data["type"] for _, data in found] == [name for name, _ in found]
    return found
