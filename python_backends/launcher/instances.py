"""All instances of one server: starts, watches and ends their processes.

Owns the processes. The supervisor makes one and calls `start`, `heal` and `stop`.
"""

from __future__ import annotations

import logging
import os

from python_backends.launcher.health import GiveUpError
from python_backends.launcher.instance_process import InstanceProcess
from python_backends.launcher.places import places, visible_gpus
from python_backends.launcher.run_files import RunFiles
from python_backends.settings import Settings
from python_backends.watching.board import Board

log = logging.getLogger("gapless")


class InstanceProcesses:
    """Requests are served while one of them is ready: an instance that never gets ready is given up alone."""

    def __init__(
        self, settings: Settings, files: RunFiles, board: Board, processors: frozenset[int] | None
    ) -> None:
        """Those of `settings.cluster`; they share `processors` (None: those of the launcher)."""
        gpus = visible_gpus(os.environ) if settings.model.device.startswith("cuda") else []
        found = places(settings.cluster.instances, processors, gpus)
        self._processes = [
            InstanceProcess(settings, files, board, number, place) for number, place in enumerate(found)
        ]
        self._given_up: set[str] = set()

    @property
    def is_ready(self) -> bool:
        """Whether one of them is."""
        return any(process.is_ready for process in self._processes)

    def start(self) -> None:
        for process in self._processes:
            process.start()

    def heal(self) -> None:
        """Starts again what has ended or no longer beats. Raises GiveUpError if no instance stays up."""
        for process in self._processes:
            if process.name in self._given_up:
                continue
            try:
                process.heal()
            except GiveUpError as error:
                self._give_up(process, error)

    def has_ended(self) -> bool:
        """Whether none of them runs."""
        return all(process.has_ended() for process in self._processes)

    def stop(self, wait_s: float) -> None:
        for process in self._processes:
            process.ask_to_end()
        for process in self._processes:
            process.stop(wait_s)

    def _give_up(self, process: InstanceProcess, error: GiveUpError) -> None:
        self._given_up.add(process.name)
        if len(self._given_up) == len(self._processes):
            raise error
        log.error("%s; the other instances go on", error)
