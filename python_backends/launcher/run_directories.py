"""Run directories: one for each life of a launcher, held by a lock for as long as that lives, however it ends.

What is shared memory of the stubs lies elsewhere, and bears the run directory's name. Called by the command line and the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "gapless-"


@contextlib.contextmanager
def held(parent: Path) -> Iterator[Path]:
    """A new one below `parent`, 0700, which nobody sweeps meanwhile; removed in the end."""
    run_directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with (run_directory / "launcher").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield run_directory
    finally:
        shutil.rmtree(run_directory, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Removes what launchers that were killed have left behind: run directories that nobody holds, and their shared memory."""
    for lock in parent.glob(f"{PREFIX}*/launcher"):
        with contextlib.suppress(OSError), lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_shared_memory(lock.parent)
            shutil.rmtree(lock.parent, ignore_errors=True)


def remove_shared_memory(run_directory: Path) -> None:
    """What the stubs of the server in this run directory have left."""
    for path in Path("/dev/shm").glob(f"{run_directory.name}-*"):
        path.unlink(missing_ok=True)
