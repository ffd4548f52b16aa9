"""How many files a process may have open; each connection is one. Called by the launcher.

The soft limit of shells and systemd is 1,024, for programs that use select(); none of ours does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_PIDFD_GETFD = 438  # the number of pidfd_getfd(2) on all platforms; C libraries have no function for it


def raise_limit(wanted: int) -> int:
    """Raises this process's soft limit to `wanted`, or to the hard limit if that is lower. Never lowers it.
    All processes that it starts from now on inherit it. Returns the soft limit.
    """
    soft, hard = (_number(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    raised = max(soft, min(wanted, hard))
    if raised > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return raised


def count(pid: int) -> int:
    """Returns how many files a process has open. Raises OSError if it has ended."""
    directory = Path(f"/proc/{pid}/fd")
    return directory.stat().st_size or len(list(directory.iterdir()))  # the number, since Linux 6.2


@contextlib.contextmanager
def borrowed(pid: int, descriptor: int) -> Iterator[int]:
    """Opens for a while what another process of this user has open. Raises OSError: it has ended, Linux is
    older than 5.6, or the container forbids it.
    """
    process = os.pidfd_open(pid)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(process)
    try:
        yield copy
    finally:
        os.close(copy)


def _number(limit: int) -> int:
    return 1 << 62 if limit == resource.RLIM_INFINITY else limit
