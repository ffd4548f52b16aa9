"""The learned forests as files: one for each version, and a small file that names the current version.

`current.json` is replaced atomically after its forest is whole on disk, so that a reader finds a complete
version at any time. The learner writes; the predictor and `make stats` read.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from python_backends.linux.files import replace_file, write_whole
from python_backends.prediction.forest import Forest

CURRENT = "current.json"
FOREST = "forest-{:06}.npz"
KEPT = 3  # versions


@dataclass(frozen=True, slots=True)
class Version:
    number: int
    learned_at_s: float  # Unix time
    fit_s: float  # processor time
    num_observations: int
    encoder: str  # it understands the embeddings of this one
    last_id: int  # of the request log: what it may have seen

    def path(self, directory: Path) -> Path:
        return directory / FOREST.format(self.number)


def publish(directory: Path, version: Version, forest: Forest) -> None:
    path = version.path(directory)
    replace_file(path, forest.save)
    write_whole(directory / CURRENT, json.dumps(asdict(version), indent=1))
    numbers = sorted(_numbers(directory) - {version.number})
    for old in numbers[: -(KEPT - 1)]:
        (directory / FOREST.format(old)).unlink(missing_ok=True)


def current(directory: Path) -> Version | None:
    """The current version; None if there is none, or if `current.json` can't be read."""
    try:
        version = Version(**json.loads((directory / CURRENT).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    counts = (version.number, version.num_observations, version.last_id)
    return version if all(isinstance(count, int) for count in counts) else None


def next_number(directory: Path) -> int:
    """One more than the number of the current version and of any version with its
    forest here: `current.json` may be lost or damaged.
    """
    last = current(directory)
    return 1 + max(_numbers(directory) | {last.number if last else 0})


def _numbers(directory: Path) -> set[int]:
    """The numbers of the versions that have their forests here."""
    found = (re.fullmatch(r"forest-(\d+)\.npz", path.name) for path in directory.glob("forest-*.npz"))
    return {int(match[1]) for match in found if match}
