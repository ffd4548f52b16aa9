"""What the stream table gives the scheduler model to send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from python_backends.nouns.request import TokenWindow


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One response of the scheduler model; `final` is the last of its
    stream, and has either a window or an error.
    """

    request_id: int
    sender: Any
    window: TokenWindow | None
    final: bool
    error: str = ""

    @property
    def is_probe(self) -> bool:
        """It brings no token."""
        return self.window is not None and self.window.is_probe

    @property
    def is_urgent(self) -> bool:
        """A first text or a last one: the client waits for it alone."""
        return self.final or (self.window is not None and self.window.num_sent == 0)
