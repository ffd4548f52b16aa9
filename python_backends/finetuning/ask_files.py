"""The files of what a caller asks of a job (`nouns.asks`), and of what it is told: files
with numbers from 1 in the job's directory, `asks/` of the caller and `answers/` of the trainer. A file is
there whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from python_backends.linux.files import write_private
from python_backends.nouns import asks

ASKS, ANSWERS = "asks", "answers"
FORGOTTEN_S = 300.0  # a job whose caller was not there for so long is cancelled
NUM_KEPT = 256  # answers


def make_places(job: Path) -> None:
    for name in (ASKS, ANSWERS):
        (job / name).mkdir()


def ask_path(job: Path, number: int) -> Path:
    return job / ASKS / f"{number:09d}"


def answer_path(job: Path, number: int) -> Path:
    return job / ANSWERS / f"{number:09d}"


def write_ask(job: Path, number: int, ask: asks.Ask) -> None:
    """Unless it is there, or was answered. Raises OSError."""
    path = ask_path(job, number)
    if not path.exists() and not answer_path(job, number).exists():
        write_private(path, asks.written(ask))


def read_ask(job: Path, number: int) -> asks.Ask:
    """Raises OSError and ValueError."""
    return asks.read_ask(ask_path(job, number).read_bytes())


def missing_before(job: Path, number: int) -> int:
    """The first ask that was never there and that the ask `number` waits for; 0: none. At most as many are
    looked at as wait.
    """
    missing = 0
    for each in range(number - 1, 0, -1):
        if ask_path(job, each).exists():
            continue
        if answer_path(job, each).exists():  # it is written before the ask is removed
            break
        missing = each
    return missing


def waited_s(job: Path, number: int) -> float:
    """Since the ask was written, in seconds; 0: it is not there. Raises OSError."""
    try:
        return time.time() - ask_path(job, number).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def answered_s(job: Path, number: int) -> float:
    """Since the ask was answered, in seconds; 0: there is no answer. Raises OSError."""
    try:
        return time.time() - answer_path(job, number).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def write_answer(job: Path, number: int, answer: asks.Answer) -> None:
    """Removes the ask, and an answer that is too old. Raises OSError."""
    write_private(answer_path(job, number), asks.written(answer))
    ask_path(job, number).unlink()
    answer_path(job, number - NUM_KEPT).unlink(missing_ok=True)


def read_answer(job: Path, number: int) -> asks.Answer | None:
    """None: it is not there yet. Raises OSError and ValueError."""
    try:
        written = answer_path(job, number).read_bytes()
    except FileNotFoundError:
        return None
    return asks.read_answer(written)


def show_life(job: Path) -> None:
    """The caller is still there."""
    with contextlib.suppress(OSError):
        os.utime(job / ASKS)


def is_forgotten(job: Path) -> bool:
    """Raises OSError."""
    return time.time() - (job / ASKS).stat().st_mtime > FORGOTTEN_S


def forget(job: Path, adapters: Path | None) -> None:
    """What only the caller of a job that has ended wanted, with the adapters that end with it."""
    places = [job / ASKS, job / ANSWERS, *([adapters / job.name] if adapters else [])]
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
