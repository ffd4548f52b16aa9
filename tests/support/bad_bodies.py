"""Bodies that no interface of the front takes, and what each is answered with."""

from __future__ import annotations

import json
from typing import Any

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
RESPONSE, MESSAGE = "/v1/responses", "/v1/messages"
DEEP = 100_000
LARGE = 1 << 70
MESSAGES = [{"role": "user", "content": "Convert"}]

Field = tuple[str, dict[str, Any]]  # a route, and what is bad there


def _each(path: str, field: str, *values: Any) -> list[Field]:
    return [(path, {field: value}) for value in values]


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
FIELDS: list[Field] = [
    *_each(CHAT, "messages", None, 1, "x", {}, [], [1], [None], [[]], [{}], [{"role": 1, "content": "x"}]),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": 1}]}]}),
    *_each(CHAT, "n", 0, -1, 129, 1.5, "1", LARGE),
    *_each(CHAT, "max_tokens", 0, -5, 1 << 40, "1", [1], LARGE),
    *_each(CHAT, "temperature", "hot", [1], {}, True),
    *_each(CHAT, "seed", 1 << 64, -(1 << 64), 1.5, "x"),
    (CHAT, {"stream": "yes"}),
    (CHAT, {"stream_options": []}),
    (CHAT, {"stop": {"a": 1}}),
    (CHAT, {"logprobs": 3}),
    (CHAT, {"top_logprobs": 3}),
    (CHAT, {"stop_token_ids": ["a"]}),
    *_each(CHAT, "logit_bias", {"1": 101}, {"x": 1}, {"1": "x"}, [1], 5),
    (CHAT, {"tempreature": 1}),
    *_each(COMPLETION, "prompt", None, {}, [], [[]], [1, "x"], [[1], 2.5], [None]),
    (COMPLETION, {"prompt": ["x"] * 1025}),
    (COMPLETION, {"prompt": "x", "n": 129}),
    (COMPLETION, {"prompt": "x", "echo": True, "max_tokens": -1}),
    (COMPLETION, {"response_format": {"type": "json_object"}, "prompt": "x"}),
    (COMPLETION, {"tools": [{"type": "function", "function": {"name": "f"}}], "prompt": "x"}),
    *((COMPLETION, {"tool_choice": choice, "prompt": "x"}) for choice in ("required", {"type": "function"})),
    *_each(RESPONSE, "input", 1, {}, [1], [None]),
    (RESPONSE, {"input": "x", "previous_response_id": "resp_1"}),
    *(
        (MESSAGE, {"messages": MESSAGES, **fields})
        for _, fields in _each(MESSAGE, "max_tokens", None, -1, "1")
    ),
    (MESSAGE, {"max_tokens": 5}),
    (MESSAGE, {"messages": MESSAGES, "max_tokens": 5, "system": 3}),
]


def body_of(path: str, fields: dict[str, Any]) -> bytes:
    """A body that is bad for its fields alone."""
    good = {"messages": MESSAGES} if path == CHAT else {}
    return json.dumps({**good, **fields}).encode()


def check(path: str, status: int, said: Any) -> None:
    """Whether it is the error of a bad body in the shape of its interface. Raises AssertionError."""
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
