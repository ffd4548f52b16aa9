"""Answers that may have one call end behind it, and what the model goes on to write is cancelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from front.one_call import MOST_BEHIND
from tests.pure.front.conftest import MESSAGES
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, sent
from tests.support.tool_model import ANSWER, ARGUMENTS, FUNCTION, NOW, Answers

FIRST, AGAIN = ANSWER.split('\n<tool_call>\n{"name": "now"')
CHAT: tuple[str, dict[str, Any]] = (
    "/v1/chat/completions",
    {
        "tools": [{"type": "function", "function": each} for each in (FUNCTION, NOW)],
        "parallel_tool_calls": False,
        "stream_options": {"include_usage": True},
        "messages": MESSAGES,
    },
)
RESPONSE: tuple[str, dict[str, Any]] = (
    "/v1/responses",
    {
        "tools": [{"type": "function", **each} for each in (FUNCTION, NOW)],
        "parallel_tool_calls": False,
        "input": "Which?",
    },
)
MESSAGE: tuple[str, dict[str, Any]] = (
    "/v1/messages",
    {
        "tools": [{"name": each["name"], "input_schema": each["parameters"]} for each in (FUNCTION, NOW)],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "max_tokens": 900,
        "messages": MESSAGES,
    },
)
ENDS = {"/v1/chat/completions": "tool_calls", "/v1/messages": "tool_use", "/v1/responses": "completed"}


@pytest.fixture
def answers(tool_model: Path) -> Answers:
    return Answers(tool_model)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("path", "body"), [CHAT, RESPONSE, MESSAGE])
def test_what_goes_on_behind_the_call_is_cancelled(
    tool_front: Front,
    ensemble: Ensemble,
    answers: Answers,
    path: str,
    body: dict[str, Any],
    is_streamed: bool,
) -> None:
    first = len(answers.pieces(FIRST, reason="length"))
    come = answers.pieces(ANSWER)[: first + MOST_BEHIND + 2]
    ensemble.pieces = (*come, None)
    said = sent(tool_front, path, {**body, "stream": is_streamed})[2]
    assert ensemble.cancelled.wait(30)
    assert f'"{ENDS[path]}"' in said
    assert '"weather"' in said
    assert '"now"' not in said.replace('"name":"now","description"', "")
    counted = [
        f'"{name}":{number}'
        for name in ("output_tokens", "completion_tokens")
        for number in range(first, len(come) + 1)
    ]
    assert any(each in said for each in counted)


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_one_that_ends_behind_the_call_is_not(
    tool_front: Front, ensemble: Ensemble, answers: Answers, reason: str
) -> None:
    ensemble.pieces = answers.pieces(FIRST, reason=reason)
    (choice,) = ask(tool_front, CHAT[0], {**CHAT[1], "stream_options": None})[2]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS
    assert not ensemble.cancelled.is_set()
