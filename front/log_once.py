"""Says in the log once what clients send in each request."""

from __future__ import annotations

import logging

log = logging.getLogger("gapless.front")

MAX_NAMES = 100  # with one message
_said: dict[str, set[str]] = {}


def log_once(message: str, name: str) -> None:
    """Logs `message`, which has a place for `name`, once for each name."""
    names = _said.setdefault(message, set())
    if name not in names and len(names) < MAX_NAMES:
        names.add(name)
        log.info(message, name)
