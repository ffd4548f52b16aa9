"""What the launcher needs of the place where instances run, whichever it is."""

from __future__ import annotations

from typing import Protocol

from python_backends.launcher.fleets.local import LocalFleet
from python_backends.launcher.run_files import RunFiles
from python_backends.settings import Settings, SettingsError
from python_backends.watching.board import Board


class Child(Protocol):
    """The process of one instance. What it writes of itself is in its record on the launcher's board."""

    def start(self) -> None:
        """Raises OSError if there is no place for it at the moment."""

    def look(self) -> None:
        """Brings the record and `how_it_ended` up to date. To be called several times a second."""

    def how_it_ended(self) -> str | None:
        """As words after its name, such as "ended with 1"; None while it runs."""

    def ask_to_end(self) -> None: ...

    def stop(self, wait_s: float) -> None:
        """Ends it. It gets up to `wait_s` to end by itself; 0: it gets no time."""


class Fleet(Protocol):
    def child(self, number: int) -> Child:
        """Of the instance with this number; not started yet."""

    def close(self) -> None:
        """To be called when all children have been stopped."""


def fleet_of(settings: Settings, files: RunFiles, board: Board, processors: frozenset[int] | None) -> Fleet:
    """Raises SettingsError if the settings name one that can't be used here."""
    if settings.cluster.engine == "local":
        return LocalFleet(settings, files.directory, board, processors)
    try:
        from python_backends.launcher.fleets.ray_fleet import RayFleet
    except ImportError as error:
        raise SettingsError(
            f"cluster.engine = ray: a package is missing ({error.name}); `build/set-up ray` installs it"
        ) from error
    return RayFleet(settings, files, board)
