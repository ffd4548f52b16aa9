"""How the command was called that a user is told to give again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from python_backends.settings import IS_INSTALLED, ROOT


def called() -> tuple[str, ...]:
    """The words before the name of a command: `gapless`, or in a checkout `.venv/bin/python -m commands`.
    That works in its folder only; elsewhere it is the path of the program.
    """
    if IS_INSTALLED:
        return ("gapless",)
    if Path.cwd() != ROOT:
        return sys.executable, str(ROOT / "client/__main__.py")
    python = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(ROOT) else sys.executable
    return python, "-m", "commands"
