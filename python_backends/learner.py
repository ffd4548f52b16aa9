"""The learner: a process next to the others that keeps the request log and grows new forests from it.

The launcher starts it (`python -m python_backends.learner RUN_DIRECTORY`) and starts it again if it ends. Its
death affects no request: the predictor goes on with the last version, and ended answers wait in the socket.
Two servers may share a directory; the learner of the second one writes nothing until the first is gone.
Tested in tests/cpu/test_learning.py.
"""

from __future__ import annotations

import fcntl
import logging
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import setproctitle

from python_backends.linux.time_slice import stand_back
from python_backends.nouns.messages import AnswerRecord
from python_backends.prediction.learning import is_due, learn_apart
from python_backends.prediction.place import adopt, directory_of
from python_backends.prediction.request_log import RequestLog
from python_backends.prediction.versions import current
from python_backends.settings import PredictionSettings, read_settings
from python_backends.wires.records import LearnerEnd

log = logging.getLogger("gapless.learner")

WRITE_EVERY_S = 1.0
LOCK = "learner"
MAX_FAILED_FITS = 3  # in a row; after that it only keeps the log


class Learner:
    def __init__(
        self,
        settings: PredictionSettings,
        directory: Path,
        learn: Callable[[Path, str], int | None] = learn_apart,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises OSError or sqlite3.Error if the log can't be written."""
        self._settings = settings
        self._directory = directory
        self._learn = learn
        self._log = RequestLog(directory, settings.max_logged)
        self._clock = clock
        self._looked_s = clock()
        self._failed_fits = 0

    def take(self, records: list[AnswerRecord]) -> None:
        if records:
            self._log.add(records)

    def learn_if_due(self) -> bool:
        """Looks every `relearn_s` whether there is something to learn. Returns whether it was learned."""
        now_s = self._clock()
        if now_s - self._looked_s < self._settings.relearn_s or self._failed_fits >= MAX_FAILED_FITS:
            return False
        self._looked_s = now_s
        last = current(self._directory)
        if last is not None and not last.path(self._directory).exists():
            log.warning("%s is gone: another forest is grown", last.path(self._directory))
            last = None
        if not is_due(self._log, self._settings.encoder, last):
            return False
        code = self._learn(self._directory, self._settings.encoder)
        if code == 0:
            self._failed_fits = 0
            return True
        self._failed_fits += 1
        end = "; it is not tried again" if self._failed_fits >= MAX_FAILED_FITS else ""
        log.warning("learning failed (%s)%s", code, end)
        return False

    def close(self) -> None:
        self._log.close()


def lock(directory: Path, is_over: Callable[[], bool]) -> IO[str] | None:
    """Waits for the lock that allows to write in `directory`, until no other learner holds it. None if
    `is_over` returns True first.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = (directory / LOCK).open("w")
    while not is_over():
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return held
        except BlockingIOError:
            time.sleep(1.0)
    held.close()
    return None


def main(run_directory: Path) -> None:
    setproctitle.setproctitle("gapless-learner")
    stand_back()
    logging.basicConfig(level=logging.INFO, format="learner: %(message)s", stream=sys.stderr)
    stopping: list[int] = []
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda signum, _frame: stopping.append(signum))
    settings = read_settings(run_directory / "settings.json")
    adopt(settings)
    directory = directory_of(settings)
    held = lock(directory, lambda: bool(stopping))
    if held is None:
        return
    learner, link = Learner(settings.prediction, directory), LearnerEnd(run_directory)
    while not stopping:
        learner.take(link.receive(WRITE_EVERY_S))
        if learner.learn_if_due():
            log.info("learned: %s", current(directory))
    learner.take(link.receive(0.0))
    link.close()
    learner.close()
    held.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except (OSError, sqlite3.Error) as error:
        log.error("the learner ends, so no answers are logged and no forest is grown: %s", error)
        sys.exit(1)
