"""Checks the paths that the settings name, and the URL of traces, before anything is started: a wrong one is
found late, or never. Called by the command line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from python_backends.linux.files import is_writable, nearest
from python_backends.settings import ROOT, WRITTEN, Settings, SettingsError

log = logging.getLogger("gapless")


def check_paths(settings: Settings) -> None:
    """Raises SettingsError. A directory that can't be written is a warning: the server serves without it."""
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
    for name, directory in _written(settings):
        found = nearest(directory)
        if not found.is_dir():
            raise SettingsError(f"{name} = {str(directory)!r}: {found} is not a directory")
        if not is_writable(directory):
            log.warning(
                "%s = %r: %s can't be written, so nothing new is kept there", name, str(directory), found
            )


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
    if settings.finetuning.enabled:
        yield "finetuning.directory", settings.finetuning_directory
        if settings.adapters_directory is not None:
            yield "adapters.directory", settings.adapters_directory
