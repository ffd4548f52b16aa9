"""The script that writes training data for a ninth task."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from models.recipe import ninth_task
from models.recipe.comments import add_comments
from models.recipe.tasks import NINTH


def test_it_writes_functions_of_ours_with_their_comments_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ninth_task, "SOURCES", ("client",))
    monkeypatch.setattr(sys, "argv", ["ninth_task", "--examples", "5", "--output", str(tmp_path / "data")])
    ninth_task.main()
    chats = [json.loads(line)["messages"] for line in (tmp_path / "data").read_text().splitlines()]
    assert len(chats) == 5
    for asked, answered in chats:
        assert (asked["role"], answered["role"]) == ("user", "assistant")
        assert asked["content"].startswith(NINTH.instructions[0])
        assert asked["content"].endswith(add_comments(answered["content"]))
