"""The files that the launcher keeps in the run directory for processes that start later: settings and key.

Their content is in memory as well. Lost or damaged files are written again before a process is started, and
every 15 minutes. Then all files get the present time, so that cleaners that use the age do not remove them.
On a full disk the server goes on with the files that are there. Called by the command line and the
supervisor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from pathlib import Path

from python_backends.linux.files import write_whole
from python_backends.settings import Settings, dump
from python_backends.wires.run_directory import KEY, MARK, SETTINGS

log = logging.getLogger("gapless")

KEEP_EVERY_S = 900.0


class RunFiles:
    """The launcher's files in the run directory `directory`. The launcher's main thread writes them."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """Raises OSError if the files can't be written."""
        self.directory = directory
        dump(settings, directory / SETTINGS)
        (directory / KEY).write_bytes(secrets.token_bytes(32))
        self._kept = {name: (directory / name).read_bytes() for name in (SETTINGS, KEY)}
        self._kept_s = time.monotonic()

    def put(self, name: str, content: bytes) -> None:
        """Writes a further file, which is kept from now on. Raises OSError."""
        self._kept[name] = content
        write_if_changed(self.directory / name, content)

    def keep_if_due(self) -> None:
        if time.monotonic() - self._kept_s >= KEEP_EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Writes missing or damaged files again, and gives all files the present time."""
        self._kept_s = time.monotonic()
        for name, content in self._kept.items():
            try:
                write_if_changed(self.directory / name, content)
            except OSError as error:
                what = "%s can't be written again (%s); processes that need it can't be started until then"
                log.warning(what, self.directory / name, error)
        with contextlib.suppress(OSError):
            (self.directory / MARK).touch()
        _touch(self.directory)


def write_if_changed(path: Path, content: bytes) -> None:
    """Writes the file unless it has this content already: on a full disk a new one can't be written. Raises
    OSError.
    """
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return
    write_whole(path, content)


def _touch(directory: Path) -> None:
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            with contextlib.suppress(OSError):
                os.utime(Path(place) / name, follow_symlinks=False)
    with contextlib.suppress(OSError):
        os.utime(directory)
