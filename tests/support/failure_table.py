"""The table of docs/operations.md that says what dies and what clients see."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/operations.md"
ROW = re.compile(
    r"^\| `(\w+)` (is killed|stands still) \| [^|]+ \| ([^|]+?) \| ([^|]+?) \| ([^|]+?) \| \d+ s \|$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Row:
    process: str
    how: str
    stream: str  # what an open stream sees, as the table says it: one of these, with "or" between them
    newcomer: str
    front: str  # a client of /v1

    def __str__(self) -> str:
        return f"{self.process}-{self.how}".replace(" ", "-")

    @property
    def signal(self) -> signal.Signals:
        return signal.SIGKILL if self.how == "is killed" else signal.SIGSTOP


ROWS = [Row(*found) for found in ROW.findall(PAGE.read_text())]
OF_A_CONTAINER = [row for row in ROWS if row.process in ("launcher", "init")]
OF_A_SERVER = [row for row in ROWS if row not in OF_A_CONTAINER]
