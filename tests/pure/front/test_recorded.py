"""What Codex 0.171 and Claude Code 2.1.197 sent in two turns of a session, with shortened texts: it is
answered, and the second prompt begins as the first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, events
from tests.support.text.templates import TOOLS, template

RECORDED = Path(__file__).parent / "recorded"
FIRST_SYSTEM = (  # as many templates: no system message but the first
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}<{{ m.role }}>{{ m.content }}{% endif %}"
    "{% endfor %}"
)
SESSIONS = [("codex", "/v1/responses", "response.completed"), ("claude_code", "/v1/messages", "message_stop")]


def session(name: str) -> list[dict[str, Any]]:
    bodies: list[dict[str, Any]] = json.loads((RECORDED / f"{name}.json").read_text())
    return bodies


@pytest.mark.parametrize("source", [TOOLS, FIRST_SYSTEM])
@pytest.mark.parametrize(("name", "path", "end"), SESSIONS)
def test_a_recorded_session_is_answered_and_its_prompts_begin_alike(
    front: Front, ensemble: Ensemble, source: str, name: str, path: str, end: str
) -> None:
    front.model.__dict__["template"] = template(source)
    for body in session(name):
        assert events(front, path, body)[-1][0] == end
    first, second = (json.loads(asked["messages"]) for asked in ensemble.asked)
    assert second[: len(first)] == first
    assert [message["role"] for message in second[len(first) :]] == ["assistant", "user"]
    assert "billing" not in json.dumps(second)
    tools = {asked.get("tools") for asked in ensemble.asked}
    assert len(tools) == 1
    assert (None in tools) == (source is FIRST_SYSTEM)


def test_claude_codes_system_message_after_the_question_stays_there(front: Front, ensemble: Ensemble) -> None:
    for source, role in ((TOOLS, "system"), (FIRST_SYSTEM, "user")):
        front.model.__dict__["template"] = template(source)
        ask(front, "/v1/messages", {**session("claude_code")[0], "stream": False})
        last = json.loads(ensemble.asked[-1]["messages"])[-1]
        assert last["role"] == role
        assert last["content"].startswith("Available agent types")
