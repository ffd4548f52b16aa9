"""The front as the launcher sees it: it is started, missed when it is silent, and started again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from python_backends.launcher import companion, front_process
from python_backends.launcher.front_process import FrontProcesses
from python_backends.linux.pauses import Silence
from python_backends.settings import FrontSettings, ServerSettings, Settings, StreamSettings
from python_backends.watching.board import FRONT, Board
from python_backends.watching.launcher_record import LauncherRecord, read_restarts


class Process:
    """That lives until it is killed."""

    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.returncode = -9


class World:
    """Time that passes, processes that were started, and the front among them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, port: int = 9000, processes: int = 1) -> None:
        self.now_s = 0.0
        self.started: list[Process] = []
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)
        monkeypatch.setattr(front_process, "Silence", partial(Silence, clock=lambda: self.now_s))
        monkeypatch.setattr(companion, "start_group", self.start)
        monkeypatch.setattr(companion, "end_group", lambda *_: None)
        self.board = Board()
        files = type("Files", (), {"directory": Path("/run"), "keep": lambda _: None})()
        settings = Settings(
            front=FrontSettings(port=port, processes=processes),
            streams=StreamSettings(dead_after_s=3.0),
            server=ServerSettings(ready_s=20.0),
        )
        self.front = FrontProcesses(settings, files, LauncherRecord(self.board, [FRONT, "front-1"]))

    def start(self, command: list[str], *_: Any, **__: Any) -> Process:
        assert command[command.index("front") :] in (["front", "/run"], ["front", "/run", "1"])
        self.started.append(Process())
        return self.started[-1]

    def live(self, seconds: float, beats: bool, other_beats: bool = False) -> None:
        for _ in range(int(5 * seconds)):
            self.now_s += 0.2
            if beats:
                self.board.beat("front")
            if other_beats:
                self.board.beat("front-1")
            self.front.heal()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(monkeypatch)
    yield made
    made.board.close()


def test_one_that_beats_stays(world: World) -> None:
    world.live(1, beats=False)
    world.live(30, beats=True)
    assert len(world.started) == 1


def test_one_that_falls_silent_is_killed_and_started_again_and_counted(world: World) -> None:
    world.live(2, beats=True)
    world.live(2.5, beats=False)
    assert world.started[0].returncode is None
    world.live(3, beats=False)
    assert (world.started[0].returncode, len(world.started)) == (-9, 2)
    assert read_restarts(world.board)[1] == {FRONT: 1, "front-1": 0}


def test_loading_may_take_as_long_as_that_of_the_server(world: World) -> None:
    world.live(2, beats=True)
    world.started[0].kill()
    world.live(15, beats=False)
    assert [each.returncode for each in world.started] == [-9, None]
    world.live(10, beats=False)
    assert world.started[1].returncode == -9


def test_each_of_several_is_started_and_missed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, processes=2)
    world.live(2, beats=True, other_beats=True)
    assert len(world.started) == 2
    world.live(5, beats=True)
    assert [each.returncode for each in world.started] == [None, -9, None]
    assert read_restarts(world.board)[1] == {FRONT: 0, "front-1": 1}
    world.board.close()


def test_without_a_port_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, port=0)
    world.live(5, beats=False)
    assert not world.started
    assert world.front.is_ready()
    world.board.close()
