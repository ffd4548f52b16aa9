"""The beats of a Python model's process: they stop when a call or the
scheduler model's thread hangs, and only then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from python_backends.launcher import stubs
from python_backends.launcher.stubs import PREDICTOR, STUBS, Stubs
from python_backends.triton_models import life
from python_backends.triton_models.life import Life, watched
from python_backends.watching.board import Board
from tests.support.clock import Clock


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    monkeypatch.setattr(life, "BEAT_EVERY_S", 0.01)
    made = Board()
    yield made
    made.close()


def beats_within(board: Board, seconds: float) -> bool:
    """Whether the tokenizer gives a new sign."""
    before, end_s = board.sign("tokenizer"), time.monotonic() + seconds
    while time.monotonic() < end_s:
        if board.sign("tokenizer") != before:
            return True
        time.sleep(0.005)
    return False


def stops(board: Board) -> None:
    """Waits until no beat comes any more. Raises AssertionError."""
    end_s = time.monotonic() + 60
    while beats_within(board, 0.3):
        assert time.monotonic() < end_s, "it goes on beating"


class Model:
    def __init__(self, life: Life) -> None:
        self.life = life
        self.go_on = threading.Event()

    @watched
    def execute(self, requests: list[Any]) -> list[Any]:
        if requests == ["bad"]:
            raise ValueError("bad")
        if requests == ["hangs"]:
            self.go_on.wait(20)
        return requests


def test_an_idle_model_and_one_with_many_calls_beat(board: Board) -> None:
    model = Model(Life("tokenizer", 0.1, board))
    time.sleep(0.3)
    assert beats_within(board, 60)
    end_s = time.monotonic() + 0.3
    while time.monotonic() < end_s:
        assert model.execute(["a"]) == ["a"]
    with pytest.raises(ValueError, match="bad"):
        model.execute(["bad"])
    time.sleep(0.3)
    assert beats_within(board, 60), "a call that raised has ended"
    model.life.end()
    assert not beats_within(board, 0.2)


def test_the_beats_stop_while_one_call_does_not_end(board: Board, caplog: pytest.LogCaptureFixture) -> None:
    model = Model(Life("tokenizer", 0.1, board))
    caller = threading.Thread(target=model.execute, args=[["hangs"]])
    caller.start()
    stops(board)
    model.go_on.set()
    caller.join()
    assert beats_within(board, 60), "the call has ended"
    model.life.end()
    assert caplog.text.count("tokenizer hangs") == 1


def test_the_beats_stop_when_the_thread_that_must_turn_no_longer_does(board: Board) -> None:
    life = Life("tokenizer", 0.1, board)
    end_s = time.monotonic() + 0.3
    while time.monotonic() < end_s:
        life.turned()
        time.sleep(0.005)
    assert beats_within(board, 60)
    stops(board)
    life.end()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    silence = stubs.Silence
    monkeypatch.setattr(stubs, "Silence", lambda: silence(clock=made))
    return made


def test_a_stub_that_does_not_beat_is_suspected_and_then_hangs(board: Board, clock: Clock) -> None:
    watched_stubs = Stubs((*STUBS, PREDICTOR), board, dead_after_s=10)
    found = {}
    for step in range(400):
        clock.now_s += 0.2
        for model in ("scheduler", "detokenizer"):
            board.beat(model)
        watched_stubs.look()
        for model in watched_stubs.suspects | watched_stubs.hung:
            found.setdefault((model, model in watched_stubs.hung), step * 0.2)
    assert found == {
        ("tokenizer", False): pytest.approx(2, abs=0.5),
        ("tokenizer", True): pytest.approx(10, abs=0.5),
        (PREDICTOR, True): pytest.approx(60, abs=0.5),
    }
    watched_stubs.forget(["tokenizer", PREDICTOR])
    assert not watched_stubs.hung
    assert not watched_stubs.suspects


def test_no_stub_hangs_because_the_whole_machine_stood_still(board: Board, clock: Clock) -> None:
    watched_stubs = Stubs(STUBS, board, dead_after_s=10)
    for _ in range(3):
        for model in STUBS:
            board.beat(model)
        clock.now_s += 0.2
        watched_stubs.look()
        clock.now_s += 15
        watched_stubs.look()
        assert not watched_stubs.hung
        assert not watched_stubs.suspects
