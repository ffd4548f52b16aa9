"""What the launcher starts: where it runs, and what it has in common with the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from commands import startup
from commands.finetune.alone import _ended_by_a_signal
from python_backends.instance.ending import Ending
from python_backends.launcher.supervisor import Supervisor
from python_backends.linux import process_group
from python_backends.linux.process_group import ASK, deaf, end_group, obeyed, start_group
from tests.support.server.serving import wait_for


def test_a_group_is_started_on_the_processors_that_it_may_use_and_its_starter_stays_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    process = start_group(["sleep", "60"], dict(os.environ), frozenset({max(before)}))
    try:
        assert os.sched_getaffinity(process.pid) == {max(before)}
        assert os.sched_getaffinity(0) == before
    finally:
        end_group(process, 0)


def test_a_group_whose_processors_were_taken_away_runs_where_its_starter_runs() -> None:
    before = os.sched_getaffinity(0)
    process = start_group(["sleep", "60"], dict(os.environ), frozenset({1000}))
    try:
        assert os.sched_getaffinity(process.pid) == before == os.sched_getaffinity(0)
    finally:
        end_group(process, 0)


def test_a_group_stays_in_the_session_by_which_linux_shares_out_processors() -> None:
    process = start_group(["sleep", "60"], dict(os.environ))
    try:
        assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
        assert os.getsid(process.pid) == os.getsid(0)
    finally:
        end_group(process, 0)


def test_a_group_may_write_to_a_terminal_that_stops_those_in_the_background() -> None:
    process = start_group(
        ["grep", "SigIgn", "/proc/self/status"], dict(os.environ), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        with process.stdout:
            ignored = int(process.stdout.readline().split()[1], 16)
        assert ignored >> (signal.SIGTTOU - 1) & 1
    finally:
        end_group(process, 0)


def members(group: int) -> list[str]:
    """Their commands."""
    return sorted(" ".join(each.cmdline()) for each in psutil.process_iter() if is_in(group, each.pid))


def is_in(group: int, process: int) -> bool:
    """A process of another test may end meanwhile."""
    try:
        return os.getpgid(process) == group
    except ProcessLookupError:
        return False


OWN_HANDLER = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: 1 / 0)
signal.signal(signal.SIGHUP, lambda *_: 1 / 0)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def with_own_handler() -> Iterator[subprocess.Popen[str]]:
    """A process that fails at SIGTERM, as tritonserver ends."""
    command = deaf([sys.executable, "-c", OWN_HANDLER])
    process = start_group(command, dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        yield process
    end_group(process, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_others_send_to_all_processes_ends_neither_a_deaf_one_nor_its_keeper(
    with_own_handler: subprocess.Popen[str], number: int
) -> None:
    before = wait_for(lambda: [each for each in [members(with_own_handler.pid)] if len(each) == 2], 30)
    os.killpg(with_own_handler.pid, number)
    status = wait_for(lambda: pending(with_own_handler.pid), 30)
    assert status >> (number - 1) & 1, "it waits there for ever"
    assert [members(with_own_handler.pid)] == before


def pending(process: int) -> int:
    """The signals that wait for it, as bits."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("ShdPnd"))


def test_a_deaf_process_is_asked_to_end_by_the_signal_that_its_starter_sends(
    with_own_handler: subprocess.Popen[str],
) -> None:
    end_group(with_own_handler, 30)
    assert with_own_handler.returncode == -ASK


@pytest.fixture
def nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("nohup")
def test_what_nohup_has_started_outlives_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of SIGHUP would undo what nohup has done, in each program that has one."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    assert obeyed(signal.SIGTERM, signal.SIGHUP) == [signal.SIGTERM]
    Ending(lambda: False).obey_signals()
    nothing: Any = SimpleNamespace(_start=bool, _stop=bool, _count_signal=bool)
    Supervisor.serve(nothing)
    with _ended_by_a_signal(nothing):
        assert handlers[signal.SIGTERM] is signal.default_int_handler
    monkeypatch.setattr("commands.startup.measure", lambda _: {"all": 1.0})
    monkeypatch.setattr(sys, "argv", ["gapless bench startup"])
    assert startup.main() == 0
    assert signal.SIGTERM in handlers
    assert signal.SIGHUP not in handlers


def test_a_process_that_a_driver_holds_does_not_hold_its_starter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Held:
        pid = 4711

        def wait(self, limit_s: float) -> None:
            raise subprocess.TimeoutExpired("held", limit_s)

    killed: list[Any] = []
    monkeypatch.setattr(process_group.os, "killpg", lambda *given: killed.append(given))
    end_group(Held(), 0)  # type: ignore[arg-type]
    assert killed == [(4711, signal.SIGKILL)]
    assert "process 4711 was killed and does not end" in caplog.text
