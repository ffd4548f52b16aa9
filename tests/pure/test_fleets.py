"""Where instances run: without Ray nothing of it is imported; with it, keepers speak to all others by TCP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_backends.launcher.fleets.keeper import Keeper, Share
from python_backends.nouns.messages import Cancel, Load
from python_backends.nouns.request import ModelLimits
from python_backends.settings import load
from python_backends.wires import InstanceEnd, InstanceLoad, InstanceReady, SchedulerEnd
from python_backends.wires.network import NETWORK, CurveKeys, Network, network_as_bytes, read_network
from tests.support.server.serving import free_ports, wait_for
from tests.support.server.toy_model import write_toy_model

ROOT = Path(__file__).resolve().parents[2]
LIMITS = ModelLimits(100, 50, 4, 20, 16, "x")
IMPORTS = """
import sys
sys.modules["ray"] = None  # importing it raises ImportError
import python_backends.launcher.__main__
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
    assert [each.load.num_slots for each in wait_for(lambda: scheduler.receive(0.1), 30)] == [4]
    scheduler.send_all([Cancel(7, 1)])
    assert wait_for(lambda: instance.receive(0.1), 30) == [Cancel(7, 1)]
    intruder.publish([Load()])
    assert not any(isinstance(each, InstanceLoad) for each in scheduler.receive(0.5))
    for end in (instance, intruder):
        end.close()


def test_a_keeper_runs_an_instance_and_says_what_stands_on_its_board(tmp_path: Path) -> None:
    settings = load(
        ROOT / "gapless.toml", {"model.directory": str(write_toy_model(tmp_path)), "engine.kind": "toy"}
    )
    keeper = Keeper(settings, 3, Network("tcp://127.0.0.1:1", "", CurveKeys.new()), Share(0, 1), "1")
    assert keeper.start().how_it_ended is None
    wait_for(lambda: b"ready" in keeper.look().record, 60)
    sign = keeper.look().sign
    wait_for(lambda: keeper.look().sign != sign, 60)
    keeper.ask_to_end()
    assert wait_for(lambda: keeper.look().how_it_ended, 60) == "ended with 0"
    keeper.stop(0)
