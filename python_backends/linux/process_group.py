"""Runs a process and its descendants as one group, which is ended as a whole, and is killed when the launcher
ends in whatever way.

In each group a shell waits at a pipe to which nothing is written. When the launcher ends, the pipe is closed,
and the shell kills the group. A signal on the death of the parent (PR_SET_PDEATHSIG) would not be enough:
grandchildren do not inherit it, and a child does not get it if it asks when the parent is already gone.

All groups stay in the launcher's session. Where Linux groups tasks by session (autogroup), it divides
processors among sessions first, and nice values and slices count only within a session. A group in the
background of a terminal may write there even if the terminal is set to stop it (`stty tostop`).

Who started a group asks it to end with ASK, which others don't send. SIGTERM and SIGHUP may come from others,
to all processes at once: a keeper survives them. A Ctrl-C reaches only the launcher, because a terminal sends
SIGINT to one group. Called by the rooms that start processes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

KEEPER = "exec sh -c 'read -r _; kill -KILL 0' gapless-keeper"
WITH_KEEPER = (
    f'trap "" TTOU; exec 3<&0 </dev/null; {{ trap "" HUP TERM; {KEEPER} <&3 3<&-; }} & exec "$@" 3<&-'
)
ASK = signal.SIGUSR2  # asks to end; a Python that has not got far ends without a traceback
DEAF = """\
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM})
os.execvp(sys.argv[1], sys.argv[1:])
"""
KILLED_S = 10.0  # time to vanish after SIGKILL: memory is given back; a driver or a disk may hold it for ever

log = logging.getLogger("gapless")


def deaf(command: list[str]) -> list[str]:
    """Returns a command that runs `command` without SIGTERM and SIGHUP, whatever handlers it sets: systemd
    and others send them to all processes of a service, and only the launcher obeys them.
    """
    return [sys.executable, "-I", "-S", "-c", DEAF, *command]


def obeyed(*numbers: signal.Signals) -> list[signal.Signals]:
    """Returns those that this process should have a handler for: not SIGHUP where `nohup` has started it."""
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    return [number for number in numbers if number not in ignored]


def start_group(
    command: list[str],
    environment: dict[str, str],
    processors: frozenset[int] | None = None,
    stack_bytes: int = 0,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Starts a command on these processors with stacks of `stack_bytes` (None and 0: those of the caller).
    Its standard input is empty. Raises OSError if the host refuses: too many processes, no memory.

    `options` are Popen's.
    """
    guarded = ["sh", "-c", WITH_KEEPER, "sh", *command]
    stack, hard_stack = resource.getrlimit(resource.RLIMIT_STACK)
    with _running_on(processors):  # it inherits them
        resource.setrlimit(resource.RLIMIT_STACK, (stack_bytes or stack, hard_stack))
        try:
            return subprocess.Popen(
                guarded, env=environment, stdin=_launcher_lives(), process_group=0, **options
            )
        finally:
            resource.setrlimit(resource.RLIMIT_STACK, (stack, hard_stack))


def end_group(process: subprocess.Popen[Any], wait_s: float, ask: signal.Signals = ASK) -> None:
    """Ends a group: sends `ask` to `process` if `wait_s` is not 0, and after at most `wait_s` SIGKILL to the
    group. To be called once: the number of a group that has ended may be that of another one.
    """
    if wait_s > 0:
        process.send_signal(ask)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILLED_S)
    except subprocess.TimeoutExpired:
        log.error("process %d was killed and does not end; going on without it", process.pid)


@contextlib.contextmanager
def _running_on(processors: frozenset[int] | None) -> Iterator[None]:
    """This thread runs on those of the processors that it may still use, or stays where it is: a container
    may have lost some.
    """
    if processors is None:
        yield
        return
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


@functools.cache
def _launcher_lives() -> int:
    """Returns the read end of a pipe whose write end only this process has, and never closes."""
    return os.pipe()[0]
