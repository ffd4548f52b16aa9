"""The launcher starts and ends instances as the scheduler model says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_backends.launcher import health, instance_process
from python_backends.launcher.fleets import local
from python_backends.launcher.health import MAX_FAILED_STARTS, GiveUpError
from python_backends.launcher.instances import TRY_AGAIN_S, InstanceProcesses
from python_backends.launcher.run_files import RunFiles
from python_backends.linux import pauses
from python_backends.settings import ClusterSettings, Settings
from python_backends.watching.board import Board
from python_backends.watching.cluster_state import ClusterState
from python_backends.watching.instance_state import InstanceRecord, State
from python_backends.watching.launcher_record import LauncherRecord, read_restarts
from tests.support.clock import Clock
from tests.support.server.serving import wait_for


class Launcher:
    """What of the launcher looks after instances, which are processes that sleep."""

    def __init__(self, directory: Path, command: list[str] | None = None, **cluster: int) -> None:
        settings = Settings(cluster=ClusterSettings(**cluster))  # type: ignore[arg-type]
        self.board = Board()
        record = LauncherRecord(self.board, [f"instance-{number}" for number in range(3)])
        self.instances = InstanceProcesses(settings, RunFiles(directory, settings), record, None)
        for each in self.instances._processes:
            each._child._command = command or ["sleep", "600"]
        self.instances.start()

    def want(self, *numbers: int) -> None:
        ClusterState(frozenset(numbers)).write(self.board)

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
        return sum(read_restarts(self.board)[1].values())

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
    deaf = ["sh", "-c", f"trap '' USR2; touch {tmp_path}/deaf; sleep 600"]
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FIRST_PAUSE_S", 0.0)
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


def test_one_that_was_ready_may_end_any_number_of_times(launcher: Launcher) -> None:
    for count in range(1, MAX_FAILED_STARTS + 2):
        launcher.say(0, State.READY)
        process = launcher.instances._processes[0]._child._process
        assert process is not None
        process.kill()
        process.wait()
        assert launcher.running() == [0]
        assert launcher.num_restarts() == count


def test_one_that_the_host_refuses_to_start_is_tried_again_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr("time.monotonic", clock)
    launcher = Launcher(tmp_path, instances=2)
    process = launcher.instances._processes[0]._child._process
    assert process is not None
    process.kill()
    process.wait()

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    with monkeypatch.context() as shortage:
        shortage.setattr(local, "start_group", refuse)
        for _ in range(100):
            assert launcher.running() == [1]
            clock.now_s += 0.5
    assert "instance 0 can't be started (Resource temporarily unavailable); trying again in" in caplog.text
    clock.now_s += 30
    assert launcher.running() == [0, 1]
    assert launcher.num_restarts() == 1
    launcher.instances.stop(0)


def test_one_that_is_given_up_is_ended_and_the_log_promises_no_further_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "FIRST_PAUSE_S", 0.0)
    launcher = Launcher(tmp_path, instances=2)
    hangs = launcher.instances._processes[1]
    monkeypatch.setattr(hangs, "_looks_stalled", lambda: True)
    for _ in range(MAX_FAILED_STARTS - 1):
        assert launcher.running() == [0, 1]
    assert launcher.running() == [0]
    assert caplog.text.count("starting it again") == launcher.num_restarts() == MAX_FAILED_STARTS - 1
    assert "instance 1 was started 5 times and never got ready" in caplog.text
    launcher.instances.stop(0)


def test_between_starts_that_lead_to_nothing_are_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a start lacks in its own process, such as threads, may come back."""
    clock = Clock(0.0)
    monkeypatch.setattr("time.monotonic", clock)
    launcher = Launcher(tmp_path, instances=2)
    child, started_s = launcher.instances._processes[1]._child, []
    while not launcher.instances._given_up:
        if 1 in launcher.running():
            started_s.append(clock.now_s)
            child._process.kill()
            child._process.wait()
        else:
            clock.now_s += 0.5
    assert started_s == [0.0, 1.0, 3.0, 7.0, 15.0]
    launcher.instances.stop(0)


def test_one_that_is_given_up_is_tried_again_after_a_long_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing is scaled any more: each number of instances would lack one that does not come."""
    clock = Clock(0.0)
    monkeypatch.setattr("time.monotonic", clock)
    launcher = Launcher(tmp_path, instances=2)

    def give_up(number: int) -> None:
        child = launcher.instances._processes[number]._child
        for _ in range(200):
            if number in launcher.running():
                child._process.kill()
                child._process.wait()
            clock.now_s += 0.5

    give_up(1)
    assert launcher.running() == [0]
    clock.now_s += TRY_AGAIN_S
    assert launcher.running() == [0, 1]
    with pytest.raises(GiveUpError):  # the other one has not been ready since
        give_up(0)
    clock.now_s += TRY_AGAIN_S
    launcher.say(1, State.READY)
    assert 1 in launcher.running()
    assert 1 not in launcher.instances._given_up
    launcher.instances.stop(0)


def test_an_instance_with_long_steps_is_ended_only_after_a_longer_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr("time.monotonic", clock)
    launcher = Launcher(tmp_path, instances=1)
    process = launcher.instances._processes[0]
    process._silence = pauses.Silence(clock=clock)
    launcher.say(0, State.READY)
    InstanceRecord(launcher.board, 0).beat(8.0)
    looks = []
    for _ in range(34):
        clock.now_s += 1
        looks.append(process._looks_stalled())
    assert looks.index(True) == 33, "after more than four of its longest steps"
    launcher.instances.stop(0)
