"""Where instances run: without Ray nothing of it is imported; with it, keepers speak to all others by TCP."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from python_backends.launcher import health
from python_backends.launcher.fleets import local
from python_backends.launcher.fleets.keeper import Keeper, Seen, Share
from python_backends.launcher.run_files import RunFiles
from python_backends.linux.free_ports import free_ports
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load
from python_backends.nouns.messages import Cancel
from python_backends.nouns.request import ModelLimits
from python_backends.settings import (
    ClusterSettings,
    EngineSettings,
    ModelSettings,
    Settings,
    SettingsError,
    TensorRTLLMSettings,
    load,
)
from python_backends.watching.board import Board
from python_backends.wires.network import NETWORK, CurveKeys, Network, network_as_bytes, read_network
from python_backends.wires.sessions import InstanceEnd, InstanceLost, InstanceReady, SchedulerEnd
from tests.support.server.serving import wait_for
from tests.support.server.toy_model import write_toy_model
from tests.support.toy_engine import toy_settings

ROOT = Path(__file__).resolve().parents[2]
LIMITS = ModelLimits(100, 50, 4, 20, 16, "x")
IMPORTS = """
import sys
sys.modules["ray"] = None  # importing it raises ImportError
import commands.serve
from python_backends.launcher.fleets.fleet import fleet_of
from python_backends.settings import ClusterSettings, Settings, SettingsError
print(len([name for name in sys.modules if name.startswith("ray.")]))
try:
    fleet_of(Settings(cluster=ClusterSettings(engine="ray")), None, None, None)
except SettingsError as error:
    print(error)
"""


def test_without_ray_nothing_imports_it_and_the_error_names_what_installs_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "0"
    assert lines[1] == "cluster.engine = ray: a package is missing (ray); `build/set-up ray` installs it"


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """Of a scheduler model on this host; the file is written."""
    (port,) = free_ports(1)
    made = Network(f"tcp://127.0.0.1:{port}", "127.0.0.1", CurveKeys.new())
    (tmp_path / NETWORK).write_bytes(network_as_bytes(made))
    return made


def test_what_is_written_of_the_network_is_read(network: Network, tmp_path: Path) -> None:
    assert read_network(tmp_path) == network
    assert network.own_endpoint == "tcp://127.0.0.1:*"
    (tmp_path / NETWORK).unlink()
    assert read_network(tmp_path) is None


@pytest.fixture
def scheduler(network: Network, tmp_path: Path) -> Iterator[SchedulerEnd]:
    end = SchedulerEnd(tmp_path, dead_after_s=60.0)
    yield end
    end.close()


def test_sessions_go_through_tcp_with_the_keys_of_the_cluster_alone(
    scheduler: SchedulerEnd, network: Network, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    keys = CurveKeys(network.keys.public, CurveKeys.new().secret)  # the public one is known to it
    other = Network(network.scheduler, network.host, keys)
    (stranger / NETWORK).write_bytes(network_as_bytes(other))
    intruder = InstanceEnd(stranger, "instance-1", LIMITS)
    instance = InstanceEnd(tmp_path, "instance-0", LIMITS)
    said: list[object] = []
    while not any(isinstance(each, InstanceReady) for each in said):
        said += scheduler.receive(0.1)
        instance.receive(0.1)
    assert [type(each) for each in said] == [InstanceReady]
    instance.publish([Load(num_slots=4)])
    assert [each.said.num_slots for each in wait_for(lambda: scheduler.receive(0.1), 30)] == [4]
    scheduler.send(0, [Cancel(7, 1)])
    assert wait_for(lambda: instance.receive(0.1), 30) == [Cancel(7, 1)]
    intruder.publish([Load()])
    assert not any(isinstance(each, InstanceLoad) for each in scheduler.receive(0.5))
    for end in (instance, intruder):
        end.close()


class Way:
    """To a port of this host, for one connection at a time. What comes while it `loses` is lost."""

    def __init__(self, port: int) -> None:
        self.loses, self.num_lost = False, 0  # bytes
        self._port = port
        self._ends: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *given: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=given))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError), self._listening:
            while True:
                here = self._listening.accept()[0]
                there = socket.create_connection(("127.0.0.1", self._port))
                self._ends = [here, there]
                self._start(self._pass, here, there)
                self._start(self._pass, there, here)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError), source:
            while data := source.recv(1 << 16):
                if self.loses:
                    self.num_lost += len(data)
                else:
                    sink.sendall(data)

    def end_connection(self) -> None:
        for each in self._ends:
            with contextlib.suppress(OSError):  # it has ended
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self.end_connection()
        for each in self._threads:
            each.join()


def test_what_a_network_loses_ends_the_session(
    scheduler: SchedulerEnd, network: Network, tmp_path: Path
) -> None:
    """As where a host is cut off for longer than ZeroMQ keeps a connection, and is back before it counts as
    dead: ZeroMQ connects again, and says nothing of what was under way.
    """
    way = Way(int(network.scheduler.rpartition(":")[2]))
    host = tmp_path / "host"
    host.mkdir()
    seen = Network(f"tcp://127.0.0.1:{way.port}", network.host, network.keys)
    (host / NETWORK).write_bytes(network_as_bytes(seen))
    instance = InstanceEnd(host, "instance-0", LIMITS)

    def heard(kind: type) -> list[Any]:
        news: list[Any] = []

        def has_come() -> bool:
            instance.receive(0.05)
            instance.publish([Load()])
            news.extend(scheduler.receive(0.05))
            return any(isinstance(each, kind) for each in news)

        wait_for(has_come, 10)
        return [type(each) for each in news]

    with contextlib.closing(way), contextlib.closing(instance):
        heard(InstanceLoad)
        way.loses = True
        for _ in range(10):
            instance.publish([Load()])
        wait_for(lambda: way.num_lost > 1000, 10)
        way.loses = False
        way.end_connection()
        news = heard(InstanceReady)
    assert [each for each in news if each is not InstanceLoad] == [InstanceLost, InstanceReady]


def test_a_keeper_runs_an_instance_and_says_what_stands_on_its_board(tmp_path: Path) -> None:
    settings = load(ROOT / "gapless.toml", {**toy_settings(str(write_toy_model(tmp_path)))})
    keeper = Keeper(settings, 3, Network("tcp://127.0.0.1:1", "", CurveKeys.new()), Share(0, 1), "1")
    assert keeper.start().how_it_ended is None
    wait_for(lambda: b"ready" in keeper.look().record, 60)
    sign = keeper.look().sign
    wait_for(lambda: keeper.look().sign != sign, 60)
    keeper.ask_to_end()
    assert wait_for(lambda: keeper.look().how_it_ended, 60) == "ended with 0"
    keeper.stop(0)


def test_a_keeper_whose_host_refuses_a_process_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(health, "FIRST_PAUSE_S", 0.0)
    keeper = Keeper(Settings(), 0, Network("tcp://127.0.0.1:1", "", CurveKeys.new()), Share(0, 1), None)
    keeper._child._command = ["true"]
    with monkeypatch.context() as shortage:
        shortage.setattr(local, "start_group", refuse)
        assert keeper.start().how_it_ended is None
    assert wait_for(lambda: keeper.look().how_it_ended, 60) == "ended with 0"
    keeper.stop(0)


@pytest.mark.parametrize("own", [None, "3"])
def test_an_instance_has_the_threads_of_the_launcher_and_not_those_of_rays_workers(
    own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gives each worker one OpenMP thread for each processor that it asks for; keepers ask for none."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_RAYLET_PID", "7")
    keeper = Keeper(Settings(), 0, Network("tcp://127.0.0.1:1", "", CurveKeys.new()), Share(0, 1), own)
    keeper._child._command = ["sh", "-c", f"env >{tmp_path}/environment"]
    keeper.start()
    assert wait_for(lambda: keeper.look().how_it_ended, 60) == "ended with 0"
    keeper.stop(0)
    lines = (tmp_path / "environment").read_text().splitlines()
    found = [line for line in lines if line.startswith(("OMP_NUM_THREADS=", "RAY_"))]
    assert found == ([] if own is None else [f"OMP_NUM_THREADS={own}"])


def test_an_instance_has_all_gpus_that_ray_gave_its_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    network = Network("tcp://127.0.0.1:1", "", CurveKeys.new())
    keeper = Keeper(Settings(model=ModelSettings(device="cuda")), 0, network, Share(1, 2), None)
    keeper._child._command = ["sh", "-c", f"echo $CUDA_VISIBLE_DEVICES >{tmp_path}/gpus"]
    keeper.start()
    assert wait_for(lambda: keeper.look().how_it_ended, 60) == "ended with 0"
    keeper.stop(0)
    assert (tmp_path / "gpus").read_text() == "2,3\n"


# --- Ray itself is another package here, that says how it was called

RAY = {
    "__init__.py": """
import os
usage, started, keepers, fault = os.environ.get("RAY_USAGE_STATS_ENABLED"), [], [], None
answers = []  # of keepers, the next ones
def init(**options):
    if fault:
        raise RuntimeError(fault)
    started.append(options)
def nodes():
    return [{"Alive": True, "NodeID": "one", "NodeManagerAddress": "127.0.0.1", "Resources": {}}]
def remote(kind):
    return Actor()
def shutdown():
    pass
def wait(asked, timeout):
    return asked, []
def get(answer):
    if isinstance(answer, Exception):
        raise answer
    return answer
class Method:
    def remote(self):
        return answers.pop(0)
class Started:
    start = look = Method()
class Actor:
    def options(self, **options):
        self.chosen = options
        return self
    def remote(self, *given):
        keepers.append((self.chosen, given))
        return Started()
""",
    "exceptions.py": """
class RayError(Exception): ...
class GetTimeoutError(RayError): ...
class ActorUnschedulableError(RayError): ...
""",
    "util/__init__.py": "def get_node_ip_address(): return '127.0.0.1'\n",
    "util/scheduling_strategies.py": "def NodeAffinitySchedulingStrategy(node, soft): return node, soft\n",
}
FLEET = "python_backends.launcher.fleets.ray_fleet"


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, text in RAY.items():
        path = tmp_path / "packages" / "ray" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in [each for each in sys.modules if each.partition(".")[0] == "ray" or each == FLEET]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    module = importlib.import_module(FLEET)
    yield module.ray
    os.environ.pop("RAY_USAGE_STATS_ENABLED", None)
    for name in [each for each in sys.modules if each.partition(".")[0] == "ray" or each == FLEET]:
        del sys.modules[name]


def fleet(directory: Path, **cluster: Any) -> Any:
    settings = Settings(cluster=ClusterSettings(instances=2, engine="ray", **cluster))
    return sys.modules[FLEET].RayFleet(settings, RunFiles(directory, settings), Board())


def test_a_ray_of_our_own_takes_little_memory_says_nothing_to_its_makers_and_touches_no_other(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the user has a Ray cluster, which RAY_ADDRESS names. Its files are in the run directory, and
    its ports are free ones, because none is named.
    """
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    fleet(tmp_path)
    assert ray.usage == "0"
    (options,) = ray.started
    del options["logging_level"]
    assert options == {
        "address": "local",
        "include_dashboard": False,
        "object_store_memory": 80 << 20,
        "_temp_dir": str(tmp_path / "ray"),
    }


def test_a_ray_cluster_that_is_named_is_joined_as_it_is(ray: Any, tmp_path: Path) -> None:
    fleet(tmp_path, address="10.0.0.1:6379")
    (options,) = ray.started
    del options["logging_level"]
    assert options == {"address": "10.0.0.1:6379"}


def test_a_ray_cluster_of_another_version_is_not_joined(ray: Any, tmp_path: Path) -> None:
    ray.fault = "Version mismatch: The cluster was started with: Ray: 2.59.0"
    with pytest.raises(SettingsError, match="Ray can't be joined: Version mismatch"):
        fleet(tmp_path, address="10.0.0.1:6379")


@pytest.mark.parametrize("own", [None, "3"])
def test_a_keeper_hears_how_many_threads_the_launcher_was_given(
    ray: Any, own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    fleet(tmp_path).new_keeper(1)
    [(options, given)] = ray.keepers
    assert options["num_cpus"] == 0, "processors are shared by our own rule"
    assert options["scheduling_strategy"] == ("one", False)
    assert given[1] == 1
    assert given[3:] == (Share(0, 2), own)


def test_an_instance_that_is_started_again_gets_processors_that_no_other_one_has(
    ray: Any, tmp_path: Path
) -> None:
    made = fleet(tmp_path)
    for number in (0, 1, 0):
        made.new_keeper(number)
    assert [given[3] for _, given in ray.keepers] == [Share(0, 2), Share(1, 2), Share(0, 2)]


def test_a_keeper_gets_as_many_gpus_as_share_the_model_of_its_instance(ray: Any, tmp_path: Path) -> None:
    settings = Settings(
        model=ModelSettings(device="cuda"),
        engine=EngineSettings(kind="tensorrt_llm"),
        tensorrt_llm=TensorRTLLMSettings(tensor_parallelism=2),
        cluster=ClusterSettings(engine="ray"),
    )
    (host,) = ray.nodes()
    host["Resources"] = {"GPU": 1.0}
    ray.nodes = lambda: [host]
    with pytest.raises(SettingsError, match="needs 2 GPUs"):
        sys.modules[FLEET].RayFleet(settings, RunFiles(tmp_path, settings), Board())
    host["Resources"] = {"GPU": 4.0}
    sys.modules[FLEET].RayFleet(settings, RunFiles(tmp_path, settings), Board()).new_keeper(0)
    [(options, _)] = ray.keepers
    assert options["num_gpus"] == 2


def test_a_cluster_without_a_host_for_an_instance_may_have_one_later(ray: Any, tmp_path: Path) -> None:
    """As a host that has nothing left: the start is tried again."""
    child = fleet(tmp_path).child(1)
    ray.nodes, nodes = list, ray.nodes
    with pytest.raises(OSError, match="no host of the Ray cluster can run an instance"):
        child.start()
    assert child.how_it_ended() is None
    ray.nodes = nodes
    child._fleet.new_keeper(1)
    assert len(ray.keepers) == 1


def test_a_host_that_has_joined_a_moment_ago_is_asked_again(ray: Any, tmp_path: Path) -> None:
    seen, refused = Seen(1, b"", None), sys.modules["ray.exceptions"].ActorUnschedulableError()
    ray.answers[:] = [refused, refused, seen, seen]
    child = fleet(tmp_path).child(1)
    child.start()
    for num_keepers in (2, 3, 3):
        child.look()
        assert len(ray.keepers) == num_keepers
        assert child.how_it_ended() is None
    assert not ray.answers
