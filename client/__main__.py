"""The command `gapless` as the package installs it; `python -m gapless` is the same.

The server lies in `server/` of the package, away from the names of other packages. In a checkout it lies
next to this folder.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> int:
    server = Path(__file__).resolve().parent / "server"
    sys.path.insert(0, str(server if server.is_dir() else server.parents[1]))
    return int(importlib.import_module("commands.__main__").main())


if __name__ == "__main__":
    sys.exit(main())
