"""What the launcher starts: where it runs, and what it has in common with the launcher."""

from __future__ import annotations

import os
import signal
import subprocess

from python_backends.linux.process_group import end_group, start_group


def test_a_group_is_started_on_the_processors_that_it_may_use_and_its_starter_stays_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    process = start_group(["sleep", "60"], dict(os.environ), frozenset({max(before)}))
    try:
        assert os.sched_getaffinity(process.pid) == {max(before)}
        assert os.sched_getaffinity(0) == before
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
