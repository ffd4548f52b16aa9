"""The texts around a model's thoughts, and which thought a prompt leaves open."""

from __future__ import annotations

from collections.abc import Iterable

THINK = ("<think>", "</think>")  # what opens a thought, and what closes it
THOUGHTS = (THINK, ("[THINK]", "[/THINK]"), ("<|channel>thought\n", "<channel|>"))


def open_thought(pairs: Iterable[tuple[str, str]], ending: str) -> str:
    """Returns what closes the thought that `ending`, the end of a prompt, leaves open; empty: none."""
    for opens, closes in pairs:
        if ending.rfind(opens.strip()) > ending.rfind(closes):
            return closes
    return ""
