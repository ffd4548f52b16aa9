"""The launcher starts and ends instances as the scheduler model says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_backends.launcher import instance_process
from python_backends.launcher.health import GiveUpError
from python_backends.launcher.instances import InstanceProcesses
from python_backends.launcher.run_files import RunFiles
from python_backends.settings import ClusterSettings, Settings
from python_backends.watching.board import Board
from python_backends.watching.cluster_files import STATUS, ClusterStatus
from python_backends.watching.instance_state import InstanceRecord, State
from python_backends.watching.restarts import read_restarts
from tests.support.server.serving import wait_for


class Launcher:
    """What of the launcher looks after instances, which are processes that sleep."""

    def __init__(self, directory: Path, command: list[str] | None = None, **cluster: int) -> None:
        settings = Settings(cluster=ClusterSettings(**cluster))  # type: ignore[arg-type]
        self.directory, self.board = directory, Board()
        self.instances = InstanceProcesses(settings, RunFiles(directory, settings), self.board, None)
        for each in self.instances._processes:
            each._child._command = command or ["sleep", "600"]
        self.instances.start()

    def want(self, *numbers: int) -> None:
        ClusterStatus(self.directory).write({"run": list(numbers)})

    def running(self) -> list[int]:
        """Their numbers, after a look."""
        self.instances.heal()
        return [
            each.number
            for each in self.instances._processes
            if each._child._process is not None and each._child._process.poll() is None
        ]

    def await_running(self, *numbers: int) -> None:
        wait_for(lambda: self.running() == list(numbers), 30)

    def num_restarts(self) -> int:
        return sum(read_restarts(self.directory)[1].values())

    def say(self, number: int, state: State) -> None:
        InstanceRecord(self.board, number).write(state)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path, instances=1, max_instances=3)
    yield made
    made.instances.stop(0)
    assert made.instances.has_ended()


def test_before_the_scheduler_model_has_said_which_should_run_it_is_those_of_the_settings(
    launcher: Launcher,
) -> None:
    assert launcher.running() == [0]


def test_what_is_missing_is_started_and_what_is_not_wanted_ends(launcher: Launcher) -> None:
    launcher.want(0, 2)
    launcher.await_running(0, 2)
    launcher.want(2)
    launcher.await_running(2)
    launcher.want(0, 1, 2)
    launcher.await_running(0, 1, 2)
    assert launcher.num_restarts() == 0, "none of this is a restart"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"run": []}', '{"run": [0, 3]}', '{"run": ["0"]}', '{"run": 1}']
)
def test_a_file_that_makes_no_sense_changes_nothing(launcher: Launcher, text: str) -> None:
    launcher.want(0, 1)
    launcher.await_running(0, 1)
    (launcher.directory / STATUS).write_text(text)
    assert launcher.running() == [0, 1]
    (launcher.directory / STATUS).unlink()
    assert launcher.running() == [0, 1]


def test_one_that_is_not_wanted_is_not_started_again(launcher: Launcher) -> None:
    launcher.want(0, 1)
    launcher.await_running(0, 1)
    launcher.want(0)
    process = launcher.instances._processes[1]._child._process
    assert process is not None
    process.kill()
    launcher.await_running(0)
    for _ in range(5):
        assert launcher.running() == [0]
    assert launcher.num_restarts() == 0


def test_one_that_dies_while_it_is_wanted_is_started_again(launcher: Launcher) -> None:
    process = launcher.instances._processes[0]._child._process
    assert process is not None
    process.kill()
    process.wait()
    launcher.await_running(0)
    assert launcher.num_restarts() == 1


def test_one_that_does_not_end_when_it_is_asked_to_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(instance_process, "END_S", 0.5)
    deaf = ["sh", "-c", f"trap '' TERM; touch {tmp_path}/deaf; sleep 600"]
    launcher = Launcher(tmp_path, deaf, instances=2, max_instances=2)
    wait_for((tmp_path / "deaf").exists, 30)
    launcher.want(0)
    launcher.await_running(0)
    assert caplog.text.count("instance 1 is not wanted any more") == 1
    launcher.want(0, 1)
    launcher.await_running(0, 1)
    launcher.instances.stop(0)


def test_readiness_is_that_of_the_instances_that_should_run(launcher: Launcher) -> None:
    launcher.say(1, State.READY)
    assert not launcher.instances.is_ready
    launcher.want(0, 1)
    launcher.running()
    launcher.say(1, State.READY)
    assert launcher.instances.is_ready


def test_one_that_never_gets_ready_is_given_up_and_gets_another_chance_when_it_is_wanted_again(
    tmp_path: Path,
) -> None:
    launcher = Launcher(tmp_path, instances=1, max_instances=2)
    launcher.instances._processes[1]._child._command = ["false"]
    launcher.want(0, 1)
    wait_for(lambda: launcher.running() and launcher.instances._given_up, 30)
    launcher.want(0)
    launcher.await_running(0)
    launcher.instances._processes[1]._child._command = ["sleep", "600"]
    launcher.want(0, 1)
    launcher.await_running(0, 1)
    for each in launcher.instances._processes:
        each._child._command = ["false"]
        assert each._child._process is not None
        each._child._process.kill()
    with pytest.raises(GiveUpError, match="was started 5 times and never got ready"):
        wait_for(lambda: launcher.running() is None, 30)
    launcher.instances.stop(0)
