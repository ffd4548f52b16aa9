"""Run directories: each launcher process has one, which is locked until the process ends, in whatever way.

The lock is on the directory itself: systemd-tmpfiles does not touch a locked directory and its content. The
stubs' shared memory is in /dev/shm, with the run directory's name. Called by the command line and the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from python_backends.wires.run_directory import MARK

PREFIX = "gapless-"
OF_KEEPER = "keeper"  # what is in the file MARK if a keeper and not a launcher made the directory
# bytes: Linux takes 107 for the name of a socket
LONGEST_PATH = 107 - len(f"/{PREFIX}12345678/scheduler.sock")


def parent() -> Path:
    """Returns where run directories are made: in the directory that systemd made for this service, in /run
    for root, else in the directory for temporary files.

    Not in XDG_RUNTIME_DIR: it is removed when its user logs out, even while a server runs.
    """
    given = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    candidates = [Path(given)] if given else []
    if os.geteuid() == 0:
        candidates.append(Path("/run"))
    with contextlib.suppress(FileNotFoundError):  # nothing can be written in any of the usual ones
        candidates.append(Path(tempfile.gettempdir()))
    return next((path for path in candidates if _will_do(path)), Path("/tmp"))


@contextlib.contextmanager
def held(parent: Path, mark: str = "") -> Iterator[Path]:
    """Makes a new run directory in `parent`, with mode 0700. The lock keeps other launchers from sweeping it.
    Removes it at the end. `mark`: empty, or OF_KEEPER.
    """
    run_directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    with _opened(run_directory) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (run_directory / MARK).write_text(mark)  # from now on, without the lock, it counts as left over
            yield run_directory
        finally:
            shutil.rmtree(run_directory, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Removes what killed launchers have left: run directories that no process holds, and their shared
    memory.

    Ignores directories of other users, links, and directories without MARK.
    """
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            _sweep(path)


def places() -> list[str]:
    """Returns patterns of the directories that run directories are made in. Those that systemd makes in /run
    are in the environment of their services alone.
    """
    return list(dict.fromkeys([glob.escape(str(parent())), "/run/*", "/tmp"]))


def in_use(*places: str) -> list[Path]:
    """Returns the run directories in `places` that a launcher of this user holds, oldest first."""
    paths = {path for place in places for path in Path("/").glob(f"{place[1:]}/{PREFIX}*")}
    return sorted(filter(is_in_use, paths), key=lambda path: path.stat().st_mtime)


def remove_shared_memory(run_directory: Path) -> None:
    """Removes the shared memory that the stubs of the server in this run directory have left."""
    for path in Path("/dev/shm").glob(f"{glob.escape(run_directory.name)}-*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _sweep(path: Path) -> None:
    """Removes one run directory. Raises OSError if it is held or is not a run directory of this user."""
    with _opened(path) as lock:
        _mark_of(lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_shared_memory(path)
        shutil.rmtree(path, ignore_errors=True)


def is_in_use(path: Path) -> bool:
    try:
        with _opened(path) as lock:
            if _mark_of(lock).st_size == 0:  # a launcher made it
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Opens the directory without waiting and without following links, which another user may have made."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    opened = os.open(directory, flags)
    try:
        yield opened
    finally:
        os.close(opened)


def _mark_of(directory: int) -> os.stat_result:
    """Raises OSError if this is not a run directory of this user."""
    mark = os.stat(MARK, dir_fd=directory, follow_symlinks=False)
    if os.fstat(directory).st_uid != os.geteuid() or not stat.S_ISREG(mark.st_mode):
        raise PermissionError(f"{MARK} is not a file, or the directory is another user's")
    return mark


def _will_do(path: Path) -> bool:
    is_usable = path.is_absolute() and path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    return is_usable and len(os.fsencode(path)) <= LONGEST_PATH
