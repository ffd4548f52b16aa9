"""Instances on the hosts of a Ray cluster: Ray starts a keeper for each, and says when one is lost.

This is the only file that knows Ray. Nothing of a request passes through it: the instances talk to the
scheduler model and to each other by TCP. The launcher's main thread calls it; no call waits for a host,
except at the end.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
os.environ.setdefault("RAY_worker_niceness", "0")  # else what Ray starts gives way to all else on its host

import ray
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from python_backends.engine.kinds import kind_of
from python_backends.launcher.fleets.keeper import THREADS, Keeper, Seen, Share
from python_backends.launcher.run_files import RunFiles
from python_backends.linux.free_ports import free_ports
from python_backends.settings import ROOT, Settings, SettingsError
from python_backends.watching.board import Board, instance_name
from python_backends.wires.network import CurveKeys, Network, network_as_bytes
from python_backends.wires.run_directory import NETWORK

log = logging.getLogger("gapless")

OBJECT_STORE_BYTES = 80 << 20  # the least that Ray takes; nothing is stored in it
AVOIDED_S = 20.0  # about as long as Ray takes to notice that a host is lost
ANSWER_S = 2.0  # for a keeper to answer, besides what it waits for


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the Ray cluster that can run instances."""

    node: str  # Ray's name of it
    address: str


class RayFleet:
    def __init__(self, settings: Settings, files: RunFiles, board: Board) -> None:
        """Joins the Ray cluster of `cluster.address`, or starts one on this host. Raises SettingsError if
        that fails.
        """
        self._settings = settings
        self._board = board
        # of each instance
        self._num_gpus = kind_of(settings).num_gpus(settings) if settings.model.device != "cpu" else 0
        _join(settings, files)
        address = ray.util.get_node_ip_address()
        (port,) = free_ports(1, address)
        self._network = Network(f"tcp://{address}:{port}", address, CurveKeys.new())
        files.put(NETWORK, network_as_bytes(self._network))
        # by instance: the node where it runs, or where Ray was asked to run it, and its part of that
        self._places: dict[int, tuple[str, int]] = {}
        self._avoided_until_s: dict[str, float] = {}  # by node
        hosts = self._hosts()
        if not hosts:
            raise SettingsError(
                "cluster.engine = ray: no host of the Ray cluster can run an instance"
                + (f", which needs {self._num_gpus} GPUs (model.device)" if self._num_gpus else "")
            )
        self._num_parts = -(-settings.cluster.most_instances // len(hosts))  # of each host
        names = ", ".join(host.address for host in hosts)
        log.info("Ray runs on %s; each host is shared by at most %d instances", names, self._num_parts)

    def child(self, number: int) -> RayChild:
        return RayChild(self, self._board, number)

    def close(self) -> None:
        ray.shutdown()

    def new_keeper(self, number: int) -> Any:
        """An actor for this instance, on the host that has the fewest; it may still have to be started. Its
        answers raise ActorUnschedulableError if that host is gone, or has joined a moment ago. Raises OSError
        if there is no host for it at the moment.
        """
        self._places.pop(number, None)
        hosts = self._hosts()
        if not hosts:
            raise OSError("no host of the Ray cluster can run an instance")
        taken = Counter(self._places.values())
        num_at = Counter(node for node, _ in self._places.values())
        node = min(hosts, key=lambda each: (self._is_avoided(each.node), num_at[each.node])).node
        part = min(range(self._num_parts), key=lambda each: taken[node, each])
        self._places[number] = node, part
        actor = ray.remote(Keeper).options(
            num_cpus=0,
            num_gpus=self._num_gpus,
            # soft: Ray would take any host for an actor that needs no processor and no GPU
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )
        share = Share(part, self._num_parts)
        return actor.remote(self._settings, number, self._network, share, os.environ.get(THREADS))

    def lost_keeper(self, number: int) -> None:
        """Its host may be lost, too; Ray finds that out later. Another one is preferred for a while."""
        if number in self._places:
            node, _ = self._places[number]
            self._avoided_until_s[node] = time.monotonic() + AVOIDED_S

    def _is_avoided(self, node: str) -> bool:
        return time.monotonic() < self._avoided_until_s.get(node, 0.0)

    def _hosts(self) -> list[Host]:
        return [
            Host(node["NodeID"], node["NodeManagerAddress"])
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("GPU", 0) >= self._num_gpus
        ]


class RayChild:
    """An instance and its keeper. Copies what the keeper says to the launcher's board."""

    def __init__(self, fleet: RayFleet, board: Board, number: int) -> None:
        self._fleet = fleet
        self._board = board
        self._number = number
        self._name = instance_name(number)
        self._keeper: Any = None
        self._answer: Any = None  # of the keeper; it may not be there yet
        self._seen = Seen(0, b"", None)

    def start(self) -> None:
        self._seen = Seen(0, b"", None)
        self._place()

    def look(self) -> None:
        if self._keeper is None or self._seen.how_it_ended is not None:
            return
        try:
            if ray.wait([self._answer], timeout=0)[0]:
                self._read()
        except (OSError, RayError) as error:
            log.warning("the keeper of instance %d: %s", self._number, str(error).partition("\n")[0])
            self._fleet.lost_keeper(self._number)
            self._seen = replace(self._seen, how_it_ended="was lost with its keeper")

    def how_it_ended(self) -> str | None:
        return self._seen.how_it_ended

    def ask_to_end(self) -> None:
        if self._keeper is not None:
            self._keeper.ask_to_end.remote()

    def stop(self, wait_s: float) -> None:
        if self._keeper is None:
            return
        with suppress(GetTimeoutError, RayError):
            if wait_s and self._seen.how_it_ended is None:
                ray.get(self._keeper.stop.remote(wait_s), timeout=wait_s + ANSWER_S)
        ray.kill(self._keeper)
        self._keeper = None

    def _place(self) -> None:
        self._keeper = self._fleet.new_keeper(self._number)
        self._answer = self._keeper.start.remote()

    def _read(self) -> None:
        try:
            seen = ray.get(self._answer)
        except ActorUnschedulableError:  # its host is gone, or has joined a moment ago
            self._place()
            return
        self._answer = self._keeper.look.remote()
        if seen.record != self._seen.record:
            self._board.write(self._name, seen.record)
        elif seen.sign != self._seen.sign:
            self._board.beat(self._name)
        self._seen = seen


def _join(settings: Settings, files: RunFiles) -> None:
    """Raises SettingsError."""
    address = settings.cluster.address
    started: dict[str, Any] = {"address": address}
    if not address:
        started = {
            "address": "local",  # else Ray would join the cluster that RAY_ADDRESS names
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_temp_dir": str(files.directory / "ray"),
        }
    try:
        ray.init(logging_level=logging.WARNING, **started)
    except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise SettingsError(f"cluster.address = {address!r}: Ray can't be joined: {error}") from error
