"""tritonserver's log is passed on, but no flood of lines."""

from __future__ import annotations

import io

import pytest

from python_backends.launcher.server_log import BURST, LONGEST_LINE, SAY_EVERY_S, BoundedLog, relay


class Log:
    """What was written, over a clock that is turned by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[str] = []
        self.bounded = BoundedLog(self.lines.append, lambda: self.now_s)


def test_a_line_that_repeats_is_written_once_and_counted() -> None:
    log = Log()
    for line in ("first", *["[warn] Error from accept() call"] * 100_000, "last"):
        log.bounded.add(line)
    assert log.lines == [
        "first",
        "[warn] Error from accept() call",
        "gapless: the line above came 99999 times more",
        "last",
    ]


def test_a_line_that_goes_on_repeating_is_counted_now_and_then() -> None:
    log = Log()
    for _ in range(35):
        log.bounded.add("again")
        log.now_s += 1
    assert log.lines[1:] == ["gapless: the line above came 10 times more"] * 3
    assert SAY_EVERY_S == 10


def test_a_flood_of_different_lines_is_bounded_and_ends_when_it_ends() -> None:
    log = Log()
    for number in range(100_000):
        log.bounded.add(f"E1126 request {number}")
        log.now_s += 1e-3
    assert BURST <= len(log.lines) < BURST + 300
    log.now_s += 2
    log.bounded.add("a later line")
    assert log.lines[-1] == "a later line"
    assert "further lines of tritonserver were left out" in log.lines[-2]


def test_usual_lines_are_passed_on_and_those_of_a_machine_without_a_gpu_are_not() -> None:
    log = Log()
    for line in ("a", "b", "", "W1126 NVML is not there", "a"):
        log.bounded.add(line)
    assert log.lines == ["a", "b", "", "a"]


def test_an_endless_line_is_written_in_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    relay(io.StringIO("x" * LONGEST_LINE + "y" * 10 + "\nlast"))
    assert capsys.readouterr().err.splitlines() == ["x" * LONGEST_LINE, "y" * 10, "last"]


def test_what_was_left_out_at_the_end_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    relay(io.StringIO("again\n" * 3))
    assert capsys.readouterr().err.splitlines() == ["again", "gapless: the line above came 2 times more"]
