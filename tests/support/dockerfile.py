"""What a Dockerfile says, without an engine that builds it."""

from __future__ import annotations

import re


def environment_of_image(dockerfile: str) -> dict[str, str]:
    """What it sets in its last stage."""
    lines = re.findall(r"^ENV (.*)$", dockerfile.split("\nFROM ")[-1], re.MULTILINE)
    return dict(word.split("=", 1) for line in lines for word in line.split())
