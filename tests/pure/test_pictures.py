"""The pictures of a terminal: what was seen, in its colours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from build import pictures


def test_a_terminal_is_drawn_with_its_colours_and_without_its_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    pictures.save("plain \x1b[31mred\x1b[0m", "make chat", "chat.svg")
    drawn = (tmp_path / "chat.svg").read_text()
    assert "\x1b" not in drawn
    assert "make chat" in drawn.replace("&#160;", " ")
    texts = {text.replace("&#160;", " ").strip(): style for style, text in STYLED.findall(drawn)}
    assert {"plain", "red"} <= texts.keys()
    assert texts["plain"] != texts["red"], "another colour"


STYLED = re.compile(r'<text class="([^"]*)"[^>]*>([^<]*)</text>')
