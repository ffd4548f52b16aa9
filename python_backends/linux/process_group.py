"""Runs a process and its descendants as one group, which is ended as a whole, and is killed when the launcher
ends in whatever way.

In each group a shell waits at a pipe to which nothing is written. When the launcher ends, the pipe is closed,
and the shell kills the group. A signal on the death of the parent (PR_SET_PDEATHSIG) would not be enough:
grandchildren do not inherit it, and a child does not get it if it asks when the parent is already gone.

All groups stay in the launcher's session. Where Linux groups tasks by session (autogroup), it divides
processors among sessions first, and nice values and slices count only within a session. A group in the
background of a terminal may write there even if the terminal is set to stop it (`stty tostop`). Called by the
rooms that start processes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import subprocess
from typing import Any

KEEPER = "exec sh -c 'read -r _; kill -KILL 0' gapless-keeper"
WITH_KEEPER = f'trap "" TTOU; exec 3<&0 </dev/null; {{ {KEEPER} <&3 3<&-; }} & exec "$@" 3<&-'


def start_group(
    command: list[str],
    environment: dict[str, str],
    processors: frozenset[int] | None = None,
    stack_bytes: int = 0,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Starts a command on these processors with stacks of `stack_bytes` (None and 0: those of the caller).
    Its standard input is empty.

    `options` are Popen's.
    """
    guarded, ours = ["sh", "-c", WITH_KEEPER, "sh", *command], os.sched_getaffinity(0)
    stack, hard_stack = resource.getrlimit(resource.RLIMIT_STACK)
    os.sched_setaffinity(0, processors or ours)  # it inherits them
    resource.setrlimit(resource.RLIMIT_STACK, (stack_bytes or stack, hard_stack))
    try:
        return subprocess.Popen(guarded, env=environment, stdin=_launcher_lives(), process_group=0, **options)
    finally:
        os.sched_setaffinity(0, ours)
        resource.setrlimit(resource.RLIMIT_STACK, (stack, hard_stack))


def end_group(process: subprocess.Popen[Any], wait_s: float) -> None:
    """Ends a group: sends SIGTERM to `process` if `wait_s` is not 0, and after at most `wait_s` SIGKILL to
    the group.
    """
    if wait_s > 0:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@functools.cache
def _launcher_lives() -> int:
    """Returns the read end of a pipe whose write end only this process has, and never closes."""
    return os.pipe()[0]
