"""What can be wrong with a guide."""

from __future__ import annotations

MOST_SHOWN = 200  # characters


class GuideError(ValueError):
    """A guide that can't be followed. The message is one line for the client, and does not name a field."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= MOST_SHOWN else line[: MOST_SHOWN - 1] + "…")


class UncompiledError(GuideError):
    """A guide that is not compiled yet. It may be a moment later."""
