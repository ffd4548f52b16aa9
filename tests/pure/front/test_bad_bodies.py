"""Sixty bad bodies, each at the route that it is bad for: an error of the right shape, which names the field,
with no path and no traceback in it, and the next request is answered.
"""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.pure.front.conftest import MESSAGES
from tests.support.ensemble import Ensemble, Front

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
RESPONSE, MESSAGE = "/v1/responses", "/v1/messages"
DEEP = 100_000
LARGE = 1 << 70

RAW: list[bytes] = [
    b"",
    b" ",
    b"{",
    b"}",
    b"[]",
    b"null",
    b"1",
    b'"text"',
    b"{'messages': []}",
    b'{"messages": NaN}',
    b'{"messages": [}',
    b'{"messages": []} {}',
    b"\xff\xfe",
    b"\x00" * 10,
    b"[" * DEEP,
    b'{"messages":' * DEEP,
    b'{"messages": "\xed\xa0\x80"}',
    b"messages=hello",
    b"--boundary\r\n",
    b"PK\x03\x04",
]
FIELDS: list[tuple[str, dict[str, Any]]] = [
    *(
        (CHAT, {"messages": value})
        for value in (None, 1, "x", {}, [], [1], [None], [[]], [{}], [{"role": 1, "content": "x"}])
    ),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": 1}]}]}),
    *((CHAT, {"n": value}) for value in (0, -1, 129, 1.5, "1", LARGE)),
    *((CHAT, {"max_tokens": value}) for value in (0, -5, 1 << 40, "1", [1], LARGE)),
    *((CHAT, {"temperature": value}) for value in ("hot", [1], {}, True)),
    *((CHAT, {"seed": value}) for value in (1 << 64, -(1 << 64), 1.5, "x")),
    (CHAT, {"stream": "yes"}),
    (CHAT, {"stream_options": []}),
    (CHAT, {"stop": {"a": 1}}),
    (CHAT, {"logprobs": 3}),
    (CHAT, {"top_logprobs": 3}),
    (CHAT, {"stop_token_ids": ["a"]}),
    *((CHAT, {"logit_bias": value}) for value in ({"1": 101}, {"x": 1}, {"1": "x"}, [1], 5)),
    (CHAT, {"tempreature": 1}),
    *((COMPLETION, {"prompt": value}) for value in (None, {}, [], [[]], [1, "x"], [[1], 2.5], [None])),
    (COMPLETION, {"prompt": ["x"] * 1025}),
    (COMPLETION, {"prompt": "x", "n": 129}),
    (COMPLETION, {"prompt": "x", "echo": True, "max_tokens": -1}),
    *((RESPONSE, {"input": value}) for value in (1, {}, [1], [None])),
    (RESPONSE, {"input": "x", "previous_response_id": "resp_1"}),
    *((MESSAGE, {"messages": MESSAGES, "max_tokens": value}) for value in (None, 0, "1")),
    (MESSAGE, {"max_tokens": 5}),
    (MESSAGE, {"messages": MESSAGES, "max_tokens": 5, "system": 3}),
]


def post(front: Front, path: str, body: bytes) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.request("POST", path, body)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    connection.close()
    return answer.status, said


def check(path: str, status: int, said: Any) -> None:
    assert 400 <= status < 500, said
    assert status != 422
    error = said["error"]
    if path == MESSAGE:
        assert (said["type"], error.keys()) == ("error", {"type", "message"})
    else:
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["code"]
    assert 0 < len(error["message"]) < 1000
    assert not any(word in error["message"] for word in ("Traceback", ".py", "/work", "/tmp"))


def test_there_are_sixty() -> None:
    assert len(RAW) + len(FIELDS) >= 60


@pytest.mark.parametrize("path", [CHAT, COMPLETION, RESPONSE, MESSAGE])
def test_what_is_no_json_object_is_refused_everywhere(front: Front, ensemble: Ensemble, path: str) -> None:
    for body in RAW:
        status, said = post(front, path, body)
        check(path, status, said)
    assert not ensemble.asked


def test_a_bad_field_is_refused_before_the_ensemble_is_asked(front: Front, ensemble: Ensemble) -> None:
    for path, fields in FIELDS:
        good = {"messages": MESSAGES} if path == CHAT else {}
        status, said = post(front, path, json.dumps({**good, **fields}).encode())
        check(path, status, said)
    assert not ensemble.asked
    assert post(front, CHAT, json.dumps({"messages": MESSAGES}).encode())[0] == 200
    assert len(ensemble.asked) == 1
