"""A process and everything that it starts: one group, which dies with the launcher, however that ends, and is ended as one.

Called by the rooms beside it that know what the process is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any

DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


def start_group(command: list[str], environment: dict[str, str], **options: Any) -> subprocess.Popen[Any]:
    """`options` are Popen's."""
    return subprocess.Popen([*DIES_WITH_PARENT, *command], env=environment, start_new_session=True, **options)


def end_group(process: subprocess.Popen[Any], wait_s: float) -> None:
    """Nicely if it ends within `wait_s`; then whatever is left of it by force."""
    if wait_s > 0:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
