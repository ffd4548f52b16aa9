"""Sixty bad bodies, each at the route that it is bad for: an error of the right shape, which names the field,
with no path and no traceback in it, and the next request is answered.
"""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.support.bad_bodies import (
    CHAT,
    COMPLETION,
    FIELDS,
    MESSAGE,
    MESSAGES,
    RAW,
    RESPONSE,
    body_of,
    check,
)
from tests.support.ensemble import Ensemble, Front


def post(front: Front, path: str, body: bytes) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.request("POST", path, body)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    connection.close()
    return answer.status, said


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
        status, said = post(front, path, body_of(path, fields))
        check(path, status, said)
    assert not ensemble.asked
    assert post(front, CHAT, json.dumps({"messages": MESSAGES}).encode())[0] == 200
    assert len(ensemble.asked) == 1
