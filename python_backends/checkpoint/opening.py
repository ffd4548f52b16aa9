"""Which kind of source a path is."""

from __future__ import annotations

from pathlib import Path

from python_backends.checkpoint.directory import CONFIG, DirectorySource
from python_backends.checkpoint.gguf.file import GgufSource, gguf_files
from python_backends.checkpoint.source import Source


def open_source(path: Path) -> Source:
    """A file is a GGUF file, and so is what a directory has without config.json, or without other weights.
    Reads nothing yet: what is wrong with the files is said when they are asked for.
    """
    is_gguf = path.is_file() or (path.suffix == ".gguf" and not path.is_dir())
    if is_gguf or (gguf_files(path) and not _has_others(path)):
        return GgufSource(path)
    return DirectorySource(path)


def _has_others(path: Path) -> bool:
    """Repositories of GGUF files may have the config.json of the model that they were made from."""
    weights = (path.glob(f"*.{kind}") for kind in ("safetensors", "bin"))
    return (path / CONFIG).is_file() and any(any(found) for found in weights)
