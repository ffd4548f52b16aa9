"""A learner that can't be started does not end the launcher: no request depends on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from python_backends.launcher import companion
from python_backends.launcher.companion import Companion
from python_backends.launcher.supervisor import LEARNER, LONGEST_LEARNER_PAUSE_S
from python_backends.watching.board import Board
from python_backends.watching.launcher_record import LauncherRecord, read_restarts
from tests.support.clock import Clock


class Files:
    """As the launcher's run files."""

    directory = Path("/run")

    def keep(self) -> None:
        pass


def learner_of(record: LauncherRecord) -> Companion:
    files: Any = Files()
    return Companion(LEARNER, "python_backends.learner", files, record, LONGEST_LEARNER_PAUSE_S)


@pytest.fixture
def pass_s(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass."""
    clock = Clock(0.0)
    monkeypatch.setattr("time.monotonic", clock)

    def advance(seconds: float) -> None:
        clock.now_s += seconds

    return advance


def test_a_start_that_fails_is_tried_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pass_s: Callable[[float], None]
) -> None:
    tries: list[list[str]] = []

    def start(command: list[str], *_: Any, **__: Any) -> None:
        tries.append(command)
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(companion, "start_group", start)
    learner = learner_of(LauncherRecord(Board(), ()))
    counts = []
    for _ in range(8):
        learner.heal()
        counts.append(len(tries))
        pass_s(0.5)
    assert counts == [1, 1, 2, 2, 2, 2, 3, 3], "after one second, then after two"
    assert (
        "the learner can't be started (Resource temporarily unavailable); trying again in 1 s" in caplog.text
    )
    learner.stop()


def test_a_learner_that_ended_is_counted_when_it_is_started_again(
    monkeypatch: pytest.MonkeyPatch, pass_s: Callable[[float], None]
) -> None:
    class Ended:
        returncode = 1

        def poll(self) -> int:
            return 1

    board = Board()
    record = LauncherRecord(board, (LEARNER,))
    monkeypatch.setattr(companion, "start_group", lambda *_, **__: Ended())
    monkeypatch.setattr(companion, "end_group", lambda *_: None)
    learner = learner_of(record)
    learner.heal()
    learner.heal()
    assert read_restarts(board)[1] == {LEARNER: 0}
    pass_s(1.0)
    learner.heal()
    assert read_restarts(board)[1] == {LEARNER: 1}


def test_after_a_learner_that_ran_for_long_the_pause_is_short_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pass_s: Callable[[float], None]
) -> None:
    class Process:
        returncode: int | None = None

        def poll(self) -> int | None:
            return self.returncode

    started: list[Process] = []

    def start(*_: Any, **__: Any) -> Process:
        started.append(Process())
        return started[-1]

    monkeypatch.setattr(companion, "start_group", start)
    monkeypatch.setattr(companion, "end_group", lambda *_: None)
    learner = learner_of(LauncherRecord(Board(), (LEARNER,)))
    for ran_s in (5.0, 5.0, 61.0, 5.0):
        learner.heal()
        pass_s(ran_s)
        started[-1].returncode = 1
        learner.heal()
        pass_s(10.0)
    assert [said.split(" again ")[1] for said in caplog.messages] == ["in 1 s", "in 2 s", "in 1 s", "in 2 s"]
