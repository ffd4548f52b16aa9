"""Which instances look for jobs in a job directory, and whether they train them: known before a job is there.

Each instance has a file in `watchers/`, which it holds locked while it lives. The file says where its server
listens, and why the instance trains nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from python_backends.settings import ServerSettings

USUAL = ServerSettings()


class Watcher(NamedTuple):
    refusal: str  # why it trains no jobs; empty: it trains them
    address: str  # where its server listens
    grpc_port: int


@contextlib.contextmanager
def announced(jobs: Path, refusal: str, server: ServerSettings = USUAL) -> Iterator[None]:
    """This process, of `server`, looks for jobs in `jobs`. `refusal`: why it trains none; empty: it trains
    them.
    """
    parent = jobs / "watchers"
    parent.mkdir(parents=True, exist_ok=True)
    _remove_dead(parent)
    path = parent / secrets.token_hex(8)
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(Watcher(refusal, server.address, server.grpc_port), file)
        file.flush()
        partial.rename(path)  # it is seen only when it is locked
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def watchers(jobs: Path) -> list[Watcher]:
    """Those that live."""
    said = [_said(path) for path in _files(jobs / "watchers")]
    return [Watcher(*json.loads(text)) for text in said if text is not None]


def refusals(jobs: Path) -> list[str]:
    """What each instance that lives says: why it trains nothing; empty: it trains."""
    return [each.refusal for each in watchers(jobs)]


def trains(jobs: Path) -> bool:
    """Whether an instance that trains looks for jobs in `jobs`."""
    return "" in refusals(jobs)


def _remove_dead(parent: Path) -> None:
    for path in _files(parent):
        if _said(path) is None:
            path.unlink(missing_ok=True)


def _files(parent: Path) -> list[Path]:
    return sorted(path for path in parent.glob("*") if path.suffix != ".partial")


def _said(path: Path) -> str | None:
    """What the instance of this file says; None: it does not live any more."""
    text = ""
    try:
        with path.open() as file:
            text = file.read()
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return text
    except FileNotFoundError:
        pass
    return None
