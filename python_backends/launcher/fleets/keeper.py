"""A keeper runs one instance as its child, on a host that need not be that of the launcher.

It has a run directory and a board of its own, and says by calls what stands on the board. Tokens, KV blocks
and heartbeats of the instance do not pass through it. The instance ends with it, in whatever way it ends.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from python_backends.launcher import run_directories
from python_backends.launcher.fleets.local import LocalChild
from python_backends.launcher.fleets.places import places
from python_backends.launcher.health import Start
from python_backends.launcher.run_files import RunFiles
from python_backends.settings import Settings
from python_backends.watching.board import Board, instance_name
from python_backends.wires.network import Network, network_as_bytes
from python_backends.wires.run_directory import NETWORK

THREADS = "OMP_NUM_THREADS"  # Ray sets it in its processes
OF_RAY = "RAY_"


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a host that an instance has: number `index` of `count` equal ones."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What a keeper says of its child."""

    sign: int  # of life, from the board; changes with every beat
    record: bytes  # its text on the board
    how_it_ended: str | None  # None: it runs


class Keeper:
    def __init__(
        self, settings: Settings, number: int, network: Network, share: Share, threads: str | None
    ) -> None:
        """`threads`: the launcher's own OMP_NUM_THREADS, if it has one. Raises OSError if there is no place
        for a run directory.
        """
        _take_usual_priority()
        self._name = instance_name(number)
        self._board = Board()
        self._held = ExitStack()
        parent = run_directories.parent()
        run_directories.sweep(parent)
        directory = self._held.enter_context(run_directories.held(parent, run_directories.OF_KEEPER))
        network = replace(network, host=_own_address(network.scheduler))
        RunFiles(directory, settings).put(NETWORK, network_as_bytes(network))
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != THREADS and not name.startswith(OF_RAY)
        }
        if threads is not None:
            environment[THREADS] = threads
        # its GPUs are those that Ray has named in the environment
        place = places(share.count, None, [])[share.index]
        self._child = LocalChild(directory, self._board, number, place, environment)
        self._start = Start(f"instance {number}", self._child.start)

    def start(self) -> Seen:
        self._start.begin()
        return self.look()

    def look(self) -> Seen:
        self._start.go_on()
        record = self._board.read(self._name)
        return Seen(self._board.sign(self._name), record, self._child.how_it_ended())

    def ask_to_end(self) -> None:
        self._child.ask_to_end()

    def stop(self, wait_s: float) -> None:
        self._child.stop(wait_s)
        self._held.close()


def _take_usual_priority() -> None:
    """Ray starts its processes at nice 15, unless RAY_worker_niceness of its raylet says otherwise: an
    instance would wait for whatever else its host runs. Does nothing where that is not allowed.
    """
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def _own_address(endpoint: str) -> str:
    """The address of this host from which `endpoint` is reached. Sends nothing."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])
