"""What is given up: a server after a few unanswered questions one after the other, a process after a few
starts that led to nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import NoReturn

import pytest

from python_backends.launcher.health import (
    MAX_FAILED_STARTS,
    MAX_FAILURES,
    FailedStarts,
    GiveUpError,
    Pulse,
    Start,
    slow_call,
)
from python_backends.watching.board import Board
from python_backends.watching.launcher_record import LauncherRecord, read_restarts
from tests.support.clock import Clock


class Asked:
    """Answers as it was told, one question after the other; then waits for the test to look."""

    def __init__(self, answers: Iterable[bool]) -> None:
        self._answers: Iterator[bool] = iter(answers)
        self.used_up = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> bool:
        for answer in self._answers:
            return answer
        self.used_up.set()
        self.go_on.wait(60)
        return True


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        ([True] * 9, False),
        ([False] * (MAX_FAILURES - 1), False),
        ([False] * MAX_FAILURES, True),
        ([False] * (MAX_FAILURES - 1) + [True, False], False),
    ],
)
def test_a_pulse_is_lost_after_failures_one_after_the_other(answers: list[bool], lost: bool) -> None:
    asked = Asked(answers)
    pulse = Pulse(asked, ask_every_s=0.001)
    pulse.start()
    assert asked.used_up.wait(60)
    assert pulse.is_lost == lost
    pulse.forget()
    assert not pulse.is_lost
    pulse.stop()
    asked.go_on.set()


def test_questions_that_were_asked_while_the_machine_stood_still_do_not_count() -> None:
    """They come back late and unanswered, because the time for an answer had passed meanwhile."""
    asked = Asked([False] * (MAX_FAILURES + 3))
    pulse = Pulse(asked, ask_every_s=0.001, longest_s=0.0)
    pulse.start()
    assert asked.used_up.wait(60)
    assert not pulse.is_lost
    assert not pulse.has_failed
    pulse.stop()
    asked.go_on.set()


def test_restarts_are_counted_by_process_and_others_can_read_them() -> None:
    board = Board()
    written = LauncherRecord(board, ["instance", "tokenizer"])
    for process in ("tokenizer", "instance", "tokenizer"):
        written.count_restart(process)
    start_time_s, counts = read_restarts(board)
    assert start_time_s > 1.7e9
    assert counts == {"instance": 1, "tokenizer": 2}


def test_a_process_that_never_gets_ready_is_given_up_after_five_starts() -> None:
    starts = FailedStarts("the instance")
    for _ in range(MAX_FAILED_STARTS - 1):
        starts.book(was_ready=False)
    starts.book(was_ready=True)
    for _ in range(MAX_FAILED_STARTS - 1):
        starts.book(was_ready=False)
    with pytest.raises(GiveUpError, match="the instance was started 5 times"):
        starts.book(was_ready=False)
    for _ in range(MAX_FAILED_STARTS - 1):  # it may be wanted again
        starts.book(was_ready=False)
    with pytest.raises(GiveUpError):
        starts.book(was_ready=False)


def test_a_start_that_the_host_refuses_is_tried_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, refusals, tries = Clock(50.0), [OSError("no memory")] * 7, []
    monkeypatch.setattr("time.monotonic", clock)

    def start() -> None:
        tries.append(clock.now_s)
        if refusals:
            raise refusals.pop()

    process = Start("the instance", start)
    process.begin()
    for _ in range(200):
        clock.now_s += 0.5
        process.go_on()
    assert tries == [50.0, 51.0, 53.0, 57.0, 65.0, 81.0, 111.0, 141.0], "and it is started once"
    assert "the instance can't be started (no memory); trying again in 16 s" in caplog.text
    process.begin()
    assert tries[-1] == clock.now_s


def test_a_slow_call_for_which_no_thread_is_left_is_refused_by_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="can't start new thread"):
        slow_call(lambda: True, lambda: None, 0.001)


def test_a_pulse_for_which_no_thread_is_left_starts_later_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    pulse = Pulse(lambda: True)
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            pulse.start()
    started: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name))
    pulse.start()
    pulse.start()
    assert started == ["pulse"]


@pytest.mark.parametrize("result", [True, False])
def test_other_things_are_done_during_a_slow_call(result: bool) -> None:
    began, may_end = threading.Event(), threading.Event()
    num_done = 0

    def call() -> bool:
        began.set()
        assert may_end.wait(60)
        return result

    def meanwhile() -> None:
        nonlocal num_done
        assert began.wait(60)
        num_done += 1
        if num_done == 3:
            may_end.set()

    assert slow_call(call, meanwhile, 0.001) == result
    assert num_done >= 3


def test_a_slow_call_raises_what_either_of_the_two_raises() -> None:
    def fails() -> NoReturn:
        raise GiveUpError("no instance")

    with pytest.raises(GiveUpError):
        slow_call(fails, lambda: None, 0.001)
    may_end = threading.Event()
    with pytest.raises(GiveUpError):
        slow_call(lambda: may_end.wait(60), fails, 0.001)
    may_end.set()
