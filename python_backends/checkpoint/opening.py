"""Which kind of source a path is."""

from __future__ import annotations

from pathlib import Path

from python_backends.checkpoint.directory import DirectorySource
from python_backends.checkpoint.source import Source


def open_source(path: Path) -> Source:
    """Reads nothing yet: what is wrong with the files is said when they are asked for."""
    return DirectorySource(path)
