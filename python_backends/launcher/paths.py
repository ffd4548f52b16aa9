"""Checks the paths that the settings name, and the URL of traces, before anything is started: a wrong one is
found late, or never. Called by the command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from python_backends.settings import ROOT, WRITTEN, Settings, SettingsError


def check_paths(settings: Settings) -> None:
    """Raises SettingsError."""
    if not (ROOT / settings.server.model_repository).is_dir():
        raise SettingsError(
            f"server.model_repository = {settings.server.model_repository!r}: there is no such directory"
        )
    if settings.server.trace_url and not _is_url(settings.server.trace_url):
        raise SettingsError(
            f"server.trace_url = {settings.server.trace_url!r}: must be a URL such as"
            " http://127.0.0.1:4318/v1/traces"
        )
    encoder = settings.prediction.encoder
    if settings.encodes_texts and Path(encoder).is_absolute() and not Path(encoder).is_dir():
        raise SettingsError(f"prediction.encoder = {encoder!r}: there is no such directory")
    for name, directory in _written(settings):  # of what may not be looked at the parent counts
        found = next(path for path in (directory, *directory.parents) if os.path.exists(path))  # noqa: PTH110
        if not found.is_dir():
            raise SettingsError(f"{name} = {str(directory)!r}: {found} is not a directory")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no such port
        return False


def _written(settings: Settings) -> Iterator[tuple[str, Path]]:
    if settings.predicts_lengths:
        yield "prediction.directory", settings.prediction_directory
    if settings.front.port:
        yield "front.directory", WRITTEN / settings.front.directory
    yield "finetuning.directory", settings.finetuning_directory
