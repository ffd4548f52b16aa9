"""Whether requests can be answered now."""

from __future__ import annotations

import time
from pathlib import Path

from front.model import Model
from python_backends.launcher.readiness import SAY_EVERY_S, path_of
from python_backends.watching.launcher_record import is_draining

LONGEST_SILENCE_S = 2 * SAY_EVERY_S


def is_up(run_directory: Path, http_port: int) -> bool:
    """Whether Triton and its models answer: the launcher says so every few seconds."""
    try:
        said_s = path_of(run_directory, http_port).stat().st_mtime
    except OSError:
        return False
    return time.time() - said_s < LONGEST_SILENCE_S


def is_healthy(run_directory: Path, http_port: int, model: Model) -> bool:
    """Triton answers, an instance is ready, and the server is not about to end."""
    return is_up(run_directory, http_port) and model.has_instance and not is_draining(model.board)
