"""All instances of one server: starts, watches and ends their processes.

The scheduler model writes on the board which instances should run; before that, it is the first
`cluster.instances`. Owns the processes. The supervisor makes one `InstanceProcesses` and calls `start`,
`heal` and `stop`.
"""

from __future__ import annotations

import logging
import time

from python_backends.launcher.fleets.fleet import fleet_of
from python_backends.launcher.health import GiveUpError
from python_backends.launcher.instance_process import InstanceProcess
from python_backends.launcher.run_files import RunFiles
from python_backends.settings import Settings
from python_backends.watching.cluster_state import ClusterState
from python_backends.watching.launcher_record import LauncherRecord

log = logging.getLogger("gapless")

TRY_AGAIN_S = 300.0  # after an instance was given up: what its starts lacked may be there again


class InstanceProcesses:
    """The processes of all instances. Requests are served while one of them is ready, so an instance that
    never gets ready is given up for a while, and the others go on.
    """

    def __init__(
        self, settings: Settings, files: RunFiles, record: LauncherRecord, processors: frozenset[int] | None
    ) -> None:
        """As many as `settings.cluster` allows. Those on this host share `processors` (None: those of the
        launcher). Raises SettingsError if there is no place for them.
        """
        self._fleet = fleet_of(settings, files, record.board, processors)
        self._processes = [
            InstanceProcess(settings, files, record, number, self._fleet.child(number))
            for number in range(settings.cluster.most_instances)
        ]
        self._board = record.board
        self._wanted = frozenset(range(settings.cluster.instances))
        self._given_up: dict[int, float] = {}  # until it is ready: when it is tried again

    @property
    def is_ready(self) -> bool:
        """Whether one of them is ready."""
        return any(process.is_ready for process in self._running)

    def start(self) -> None:
        for process in self._running:
            process.start()

    def look(self) -> None:
        """Brings up to date what is known of them. `heal` does so, too."""
        for process in self._processes:
            process.look()

    def heal(self) -> None:
        """Starts the instances that should run but have ended, no longer beat or were not started. Ends those
        that should not run. Raises GiveUpError if no instance can be kept running.
        """
        state = ClusterState.read(self._board)
        if state is not None:
            self._wanted = state.wanted
        self._given_up = {
            number: again_s
            for number, again_s in self._given_up.items()
            if number in self._wanted and not self._processes[number].is_ready
        }
        self.look()
        for process in self._processes:
            if process.number not in self._wanted:
                process.end()
            elif time.monotonic() >= self._given_up.get(process.number, 0.0):
                self._heal_one(process)

    def has_ended(self) -> bool:
        """Whether all processes that should run have ended."""
        return all(process.has_ended() for process in self._running)

    def stop(self, wait_s: float) -> None:
        for process in self._processes:
            process.ask_to_end()
        for process in self._processes:
            process.stop(wait_s)
        self._fleet.close()

    @property
    def _running(self) -> list[InstanceProcess]:
        """The processes that should run."""
        return [process for process in self._processes if process.number in self._wanted]

    def _heal_one(self, process: InstanceProcess) -> None:
        try:
            process.heal()
        except GiveUpError as error:
            self._given_up[process.number] = time.monotonic() + TRY_AGAIN_S
            if self._given_up.keys() == self._wanted:
                raise
            log.error("%s; the other instances go on, and it is tried again in %.0f s", error, TRY_AGAIN_S)
