"""What was learned, forests and regressions, as files: one for each version, and a small file
that names the current version.

The small file is replaced atomically after its version is whole on disk, so that a reader finds a complete
version at any time. The learner writes; the predictors and `make stats` read.
"""

from __future__ import annotations

import json
import lzma
import re
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from zipfile import BadZipFile

from python_backends.linux.files import replace_file, write_whole

KEPT = 3  # versions
# what numpy and zipfile raise of a file of arrays that is damaged, wherever that is
DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    RuntimeError,
    MemoryError,
    BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


class Learned(StrEnum):
    """Each begins the names of its files."""

    FOREST = "forest"
    REGRESSIONS = "regressions"  # one for each stage


CURRENT = {Learned.FOREST: "current.json", Learned.REGRESSIONS: "current-regressions.json"}


@dataclass(frozen=True, slots=True)
class Version:
    number: int
    learned_at_s: float  # Unix time
    fit_s: float  # processor time
    num_observations: int
    encoder: str  # it understands the embeddings of this one; empty for the others
    last_id: int  # of the request log: what it may have seen
    learned: Learned = Learned.FOREST

    def path(self, directory: Path) -> Path:
        return _path(directory, self.learned, self.number)


def publish(directory: Path, version: Version, save: Callable[[Path], None]) -> None:
    """`save` writes what was learned to a path."""
    replace_file(version.path(directory), save)
    write_whole(directory / CURRENT[version.learned], json.dumps(asdict(version), indent=1))
    numbers = sorted(_numbers(directory, version.learned) - {version.number})
    for old in numbers[: -(KEPT - 1)]:
        _path(directory, version.learned, old).unlink(missing_ok=True)


def current(directory: Path, learned: Learned = Learned.FOREST) -> Version | None:
    """The current version; None if there is none, or if the file that names it can't be read."""
    try:
        version = Version(**json.loads((directory / CURRENT[learned]).read_text()) | {"learned": learned})
    except (OSError, ValueError, TypeError):
        return None
    counts = (version.number, version.num_observations, version.last_id)
    return version if all(isinstance(count, int) for count in counts) else None


def existing(directory: Path, learned: Learned = Learned.FOREST) -> Version | None:
    """The current version, if its file is still there."""
    last = current(directory, learned)
    return last if last is not None and last.path(directory).exists() else None


def next_number(directory: Path, learned: Learned = Learned.FOREST) -> int:
    """One more than the number of the current version and of any version here: the file that names the
    current one may be lost or damaged.
    """
    last = current(directory, learned)
    return 1 + max(_numbers(directory, learned) | {last.number if last else 0})


def _path(directory: Path, learned: Learned, number: int) -> Path:
    return directory / f"{learned}-{number:06}.npz"


def _numbers(directory: Path, learned: Learned) -> set[int]:
    """The numbers of the versions that are here."""
    names = (path.name for path in directory.glob(f"{learned}-*.npz"))
    found = (re.fullmatch(rf"{learned}-(\d+)\.npz", name) for name in names)
    return {int(match[1]) for match in found if match}
