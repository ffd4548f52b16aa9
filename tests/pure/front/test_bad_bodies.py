"""Sixty bad bodies, each at the route that it is bad for: an error of the right shape, which names the field,
with no path and no traceback in it, and the next request is answered.
"""

from __future__ import annotations

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
from tests.support.front_wire import ask


def test_there_are_sixty() -> None:
    assert len(RAW) + len(FIELDS) >= 60


@pytest.mark.parametrize("path", [CHAT, COMPLETION, RESPONSE, MESSAGE])
def test_what_is_no_json_object_is_refused_everywhere(front: Front, ensemble: Ensemble, path: str) -> None:
    for body in RAW:
        status, _, said = ask(front, path, body)
        check(path, status, said)
    assert not ensemble.asked


def test_a_bad_field_is_refused_before_the_ensemble_is_asked(front: Front, ensemble: Ensemble) -> None:
    for path, fields in FIELDS:
        status, _, said = ask(front, path, body_of(path, fields))
        check(path, status, said)
    assert not ensemble.asked
    assert ask(front, CHAT, {"messages": MESSAGES})[0] == 200
    assert len(ensemble.asked) == 1
