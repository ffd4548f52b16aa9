"""Instances as children of the process that calls this: of the launcher, or of a keeper."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from python_backends.engine.kinds import kind_of
from python_backends.launcher.fleets.places import VISIBLE, Place, places, visible_gpus
from python_backends.linux.large_pages import with_large_pages
from python_backends.linux.process_group import ASK, end_group, start_group
from python_backends.settings import ROOT, Settings, SettingsError
from python_backends.watching.board import VARIABLE, Board


class LocalFleet:
    """All instances run on this host, and share its processors and GPUs."""

    def __init__(
        self, settings: Settings, run_directory: Path, board: Board, processors: frozenset[int] | None
    ) -> None:
        """As many as `settings.cluster` allows. They share `processors` (None: those of the launcher). Raises
        SettingsError if the GPUs of this host do not suffice for them.
        """
        self._run_directory = run_directory
        self._board = board
        self._places = _places(settings, processors)

    def child(self, number: int) -> LocalChild:
        return LocalChild(self._run_directory, self._board, number, self._places[number], os.environ)

    def close(self) -> None:
        pass


class LocalChild:
    """The process of one instance, in a group of its own that ends with this process."""

    def __init__(
        self, run_directory: Path, board: Board, number: int, place: Place, environment: Mapping[str, str]
    ) -> None:
        self._command = [sys.executable, "-m", "python_backends.instance", str(run_directory), str(number)]
        self._board = board
        self._place = place
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises OSError if the host refuses."""
        self._process = None  # else the next one would seem to have ended as the one before
        # the user's PYTHONPATH may name further places of libraries
        paths = [str(ROOT), *filter(None, [self._environment.get("PYTHONPATH")])]
        environment = with_large_pages(
            {
                **self._environment,
                **self._place.environment,
                "PYTHONPATH": os.pathsep.join(paths),
                VARIABLE: str(self._board.fd),
                # numpy's products are small here. A second thread of its library spins for some milliseconds
                # after each of them, and takes the processor from the engine
                "OPENBLAS_NUM_THREADS": "1",
            }
        )
        self._process = start_group(
            self._command, environment, self._place.processors, cwd=ROOT, pass_fds=[self._board.fd]
        )

    def look(self) -> None:
        pass

    def how_it_ended(self) -> str | None:
        code = None if self._process is None else self._process.poll()
        return None if code is None else f"ended with {code}"

    def ask_to_end(self) -> None:
        if self._process is not None:
            self._process.send_signal(ASK)

    def stop(self, wait_s: float) -> None:
        if self._process is not None:
            end_group(self._process, wait_s)


def _places(settings: Settings, processors: frozenset[int] | None) -> list[Place]:
    """Raises SettingsError."""
    cluster = settings.cluster
    count = cluster.most_instances
    if count == 1 or not settings.model.device.startswith("cuda"):
        return places(count, processors, [])
    kind, gpus = kind_of(settings), visible_gpus(os.environ)
    said = f"cluster.{'max_instances' if cluster.follows_load else 'instances'} = {count}"
    num_gpus = kind.num_gpus(settings)
    if num_gpus > 1 and len(gpus) < count * num_gpus:
        raise SettingsError(
            f"{said}: {count * num_gpus} GPUs are wanted, {num_gpus} for each instance; {len(gpus)} are here"
            f" ({VISIBLE})"
        )
    if kind.measures_memory and settings.engine.measures_kv and 0 < len(gpus) < count:
        raise SettingsError(
            f"{said}, and GPUs here = {len(gpus)}: where instances share a GPU, engine.kv_memory_gib must say"
            " how much memory each has for KV blocks"
        )
    return places(count, processors, gpus, num_gpus)
