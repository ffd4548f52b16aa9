"""The layout of `adapters.directory`: `<name>/<number>/` is a version of an adapter, and the largest number
is the newest. `<name>/` may also be an adapter itself. All of them are PEFT directories.
"""

from __future__ import annotations

import re
from pathlib import Path

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
MAX_RANK = 256  # of an adapter: those of PEFT's users have 4 to 128
NUMBER = re.compile(r"[1-9][0-9]{0,17}")


def wrong_name(name: str) -> str:
    """The name of an adapter, and what it must be; empty: it may be one."""
    said = "must be 1 to 128 letters, digits and . _ : -, the first no sign"
    return "" if NAME.fullmatch(name) else f"{name[:40]!r}: {said}"


def numbered(directory: Path) -> list[Path]:
    """The versions of an adapter, the oldest first."""
    try:
        found = [path for path in directory.iterdir() if NUMBER.fullmatch(path.name) and path.is_dir()]
    except OSError:
        return []  # it is not there, or can't be read
    return sorted(found, key=lambda path: int(path.name))
