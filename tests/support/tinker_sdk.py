"""Where `build/set-up tinker` puts Tinker's SDK, and what it wants in other versions than the server."""

from __future__ import annotations

import sys
from pathlib import Path

TINKER = Path(sys.prefix) / "tinker"
