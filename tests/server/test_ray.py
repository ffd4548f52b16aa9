"""Instances that keepers run on the hosts of a Ray cluster: raylets on this host, and one in a network of its
own that can be cut off.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.policies import setting_of
from python_backends.linux.free_ports import free_ports
from tests.server.test_cluster import LONGER, check_nothing_is_kept, control, migrations
from tests.server.test_recovery import leftovers
from tests.support.server.expected import Expected
from tests.support.server.serving import Gapless, wait_for
from tests.support.server.whole_answers import whole_answers
from tests.support.shuffle import SHUFFLE
from tests.support.toy_engine import toy_settings

ray = pytest.importorskip("ray")

RAY = str(Path(sys.executable).with_name("ray"))
STORE = "--object-store-memory=83886080"
QUIET = ("--disable-usage-stats", "--block", STORE, "--num-cpus=2")
AUTHENTICATED = {"RAY_AUTH_MODE": "token"}  # as Ray's head is by itself; what joins it must be told
WITH_TOKEN = {**os.environ, **AUTHENTICATED}
SHUFFLED = {"cluster.policy": SHUFFLE}
KEEP = {"cluster.policy": setting_of("round_robin")}


def serve(toy_model: Path, **settings: Any) -> Gapless:
    """Two instances of the toy engine, with keepers."""
    toy = {**toy_settings(toy_model, step_ms=10), "engine.slots": 64}
    cluster = {"cluster.instances": 2, "cluster.engine": "ray", "streams.dead_after_s": 3}
    served = Gapless(AUTHENTICATED, **toy, **{**cluster, **settings})
    await_both(served)
    return served


def await_both(served: Gapless) -> None:
    wait_for(lambda: served.metrics()['gapless_instances{state="ready"}'] == 2, 120)


def check_answers(served: Gapless, expected: Expected, between: Any) -> None:
    """Asks 40 requests, calls `between` while they are answered, and checks all answers."""
    with whole_answers(served, expected, 40, **LONGER) as client:
        between(client)
    check_nothing_is_kept(served)


@pytest.fixture(scope="module")
def kept(toy_model: Path) -> Iterator[Gapless]:
    """With a Ray of its own on this host."""
    with serve(toy_model, **SHUFFLED) as served:
        yield served


def test_requests_move_by_tcp_and_no_text_changes(kept: Gapless, expected: Expected) -> None:
    assert {psutil.Process(kept.instance_pid(number)).nice() for number in (0, 1)} == {0}
    check_answers(kept, expected, lambda client: client.drain(1))
    assert migrations(kept, "shuffle") >= 50
    assert kept.metrics()["gapless_migration_bytes_total"] > 0
    assert kept.metrics()["gapless_instance_losses_total"] == 0


def test_an_instance_its_keeper_or_both_die_and_every_text_is_whole(
    kept: Gapless, expected: Expected
) -> None:
    def kill_all(client: Any) -> None:
        for number, name in [(0, "KILL"), (1, "STOP")]:
            with one_more_loss(kept, client):
                kept.kill(kept.instance_pid(number), signal.Signals[f"SIG{name}"])
        with one_more_loss(kept, client):
            instance = psutil.Process(kept.instance_pid(1))
            keeper = instance.parent()
            assert keeper is not None
            keeper.kill()
            wait_for(lambda: not instance.is_running() or instance.status() == psutil.STATUS_ZOMBIE, 30)

    check_answers(kept, expected, kill_all)


@contextlib.contextmanager
def one_more_loss(kept: Gapless, client: Any) -> Iterator[None]:
    """Begins when no request is suspected, and waits until all is well again."""
    client.drain(0.5)
    wait_for(lambda: kept.metrics()['gapless_waiting{reason="trial"}'] == 0, 60)
    losses = kept.metrics()["gapless_instance_losses_total"]
    yield
    wait_for(lambda: kept.metrics()["gapless_instance_losses_total"] == losses + 1, 60)
    await_both(kept)


def test_orders_reach_instances_of_keepers(kept: Gapless, expected: Expected) -> None:
    def drain(client: Any) -> None:
        drained = control(kept, "drain", "1")
        assert drained.returncode == 0, drained.stderr
        assert control(kept, "restore", "1").returncode == 0

    check_answers(kept, expected, drain)
    fewer = control(kept, "scale", "1")
    assert fewer.returncode == 0, fewer.stderr
    more = control(kept, "scale", "2")
    assert more.returncode == 0, more.stderr
    await_both(kept)


def test_nothing_is_left_when_the_launcher_is_killed(toy_model: Path) -> None:
    """Two of Ray's own helpers notice it a minute later."""
    served = serve(toy_model, **KEEP)
    processes = [each for each in served.processes() if not each.name().startswith("ray::")]
    assert {"gapless-instance-0", "gapless-instance-1", "raylet"} <= {each.name()[:18] for each in processes}
    run_name = served.run_directory.name
    served.kill(served.process.pid)
    served.process.wait()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive
    served.stop()
    another = serve(toy_model, **KEEP)
    assert another.stop() == 0
    assert not list(leftovers(run_name)), "the next launcher has swept it"


class RayCluster:
    """Two raylets, the second of which may be in another network."""

    def __init__(self, address: str, prefix: tuple[str, ...] = (), other: str = "") -> None:
        self.directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self._started: list[subprocess.Popen[bytes]] = []
        (port,) = free_ports(1)
        self.address = f"{address}:{port}"
        head = ["--head", f"--port={port}", f"--temp-dir={self.directory}", "--include-dashboard=false"]
        try:
            self._start((), *head, f"--node-ip-address={address}")
            self._await_nodes(1)
            self._start(prefix, f"--address={self.address}", f"--node-ip-address={other or address}")
            self._await_nodes(2)
        except BaseException:
            self.end()
            raise

    def _start(self, prefix: tuple[str, ...], *options: str) -> None:
        null = subprocess.DEVNULL
        command = [*prefix, RAY, "start", *options, *QUIET]
        self._started.append(subprocess.Popen(command, stdout=null, stderr=null, env=WITH_TOKEN))

    def _await_nodes(self, count: int) -> None:
        """`ray status` knows how many there are."""

        def count_nodes() -> int:
            said = subprocess.run(
                [RAY, "status", f"--address={self.address}"],
                capture_output=True,
                text=True,
                check=False,
                env=WITH_TOKEN,
            )
            return said.stdout.count("node_")

        wait_for(lambda: count_nodes() >= count, 60)

    @staticmethod
    def processes(top: subprocess.Popen[bytes]) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return [*psutil.Process(top.pid).children(recursive=True), psutil.Process(top.pid)]
        return []

    def raylet(self) -> psutil.Process:
        """Of the second one."""
        return next(each for each in self.processes(self._started[1]) if each.name() == "raylet")

    def end(self) -> None:
        for top in reversed(self._started):
            for process in self.processes(top):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            top.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    made = RayCluster(ray.util.get_node_ip_address())
    yield made
    made.end()


def test_a_raylet_is_killed_and_every_text_is_whole(
    cluster: RayCluster, toy_model: Path, expected: Expected
) -> None:
    with serve(toy_model, **SHUFFLED, **{"cluster.address": cluster.address}) as served:
        raylet = cluster.raylet()

        def its_instances() -> list[psutil.Process]:
            return [each for each in raylet.children(recursive=True) if "gapless-instance" in each.name()]

        wait_for(lambda: len(its_instances()) == 1, 60)  # each raylet has one of the two
        instances = its_instances()
        assert instances[0].nice() == 0

        def kill(client: Any) -> None:
            raylet.kill()
            wait_for(lambda: served.metrics()["gapless_instance_losses_total"] == 1, 60)
            assert not psutil.wait_procs(instances, timeout=30)[1], "the instance ends with its keeper"

        check_answers(served, expected, kill)
        await_both(served)


NAMES = {"namespace": f"gapless{os.getpid()}", "ours": f"gl{os.getpid()}a", "theirs": f"gl{os.getpid()}b"}
OURS, THEIRS = "10.249.77.1", "10.249.77.2"


def ip(*words: str, check: bool = True) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.returncode == 0


@pytest.fixture
def far_cluster() -> Iterator[RayCluster]:
    """The second raylet is in a network namespace, which a pair of virtual interfaces connects with ours."""
    namespace, ours, theirs = NAMES.values()
    if os.getuid() != 0 or not ip("netns", "add", namespace, check=False):
        pytest.skip("network namespaces can be made by root only")
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", namespace)
        ip("addr", "add", f"{OURS}/24", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", namespace, "addr", "add", f"{THEIRS}/24", "dev", theirs)
        ip("-n", namespace, "link", "set", theirs, "up")
        ip("-n", namespace, "link", "set", "lo", "up")
        made = RayCluster(OURS, ("ip", "netns", "exec", namespace), THEIRS)
        yield made
        made.end()
    finally:
        ip("netns", "del", namespace)


def test_a_host_is_cut_off_while_requests_move_and_every_text_is_whole(
    far_cluster: RayCluster, toy_model: Path, expected: Expected
) -> None:
    with serve(toy_model, **SHUFFLED, **{"cluster.address": far_cluster.address}) as served:

        def cut(client: Any) -> None:
            client.drain(1)
            assert migrations(served, "shuffle") > 0
            ip("link", "set", NAMES["ours"], "down")
            wait_for(lambda: served.metrics()["gapless_instance_losses_total"] >= 1, 60)
            client.drain(1)
            ip("link", "set", NAMES["ours"], "up")
            time.sleep(1)

        check_answers(served, expected, cut)
