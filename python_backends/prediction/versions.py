"""What the learner has learned, as files: a forest for each version, and one small file that says which of them counts.

`current.json` is replaced atomically after its forest is whole on disk, so that whoever reads at any time finds a complete version. The
learner writes; the predictor and `make stats` read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from python_backends.prediction.forest import Forest

CURRENT = "current.json"
KEPT = 3  # versions


@dataclass(frozen=True, slots=True)
class Version:
    number: int
    learned_at_s: float  # Unix time
    fit_s: float  # processor time
    num_observations: int
    encoder: str  # whose embeddings it understands
    last_id: int  # of the request log: what it may have seen

    def path(self, directory: Path) -> Path:
        return directory / f"forest-{self.number:06}.npz"


def publish(directory: Path, version: Version, forest: Forest) -> None:
    path = version.path(directory)
    _replace(path, forest.save)
    _replace(directory / CURRENT, lambda written: written.write_text(json.dumps(asdict(version), indent=1)))
    for old in sorted(directory.glob("forest-*.npz"))[:-KEPT]:
        old.unlink(missing_ok=True)


def current(directory: Path) -> Version | None:
    """None if there is none, or none that can be read."""
    try:
        return Version(**json.loads((directory / CURRENT).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def read(directory: Path, version: Version) -> Forest:
    """Raises ForestError."""
    return Forest.load(version.path(directory))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    written = path.with_suffix(".new")
    write(written)
    with written.open("rb") as file:
        os.fsync(file.fileno())
    written.replace(path)
