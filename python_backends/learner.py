"""The learner: a process next to the others that keeps the request log and learns from it: regressions on
hidden states and on the tokens of prompts, and forests.

The launcher starts it (`python -m python_backends.learner RUN_DIRECTORY`) and starts it again if it ends. Its
death affects no request: the scheduler model goes on with the last version, and ended answers wait in the
socket. Two servers may share a directory; the learner of the second one writes nothing until the first is
gone.
"""

from __future__ import annotations

import logging
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import setproctitle

from python_backends.linux.files import locked_file
from python_backends.linux.process_group import ASK
from python_backends.linux.time_slice import stand_back
from python_backends.nouns.messages import AnswerRecord
from python_backends.prediction.learning import Fit, learn_apart, what_is_due
from python_backends.prediction.place import directory_of
from python_backends.prediction.request_log import RequestLog
from python_backends.prediction.versions import Learned, current, existing
from python_backends.settings import PredictionSettings, read_settings
from python_backends.wires.records import LearnerEnd
from python_backends.wires.run_directory import SETTINGS

log = logging.getLogger("gapless.learner")

WRITE_EVERY_S = 1.0
LOCK = "learner"
MAX_LOGGED = 50_000  # the newest answers, features and lengths, 0.2 KB each: 10 MB
MOST_DOUBLINGS = 5  # of the pause after failed fits: from 3 minutes to an hour and a half


class Learner:
    def __init__(
        self,
        settings: PredictionSettings,
        directory: Path,
        learn: Callable[[Path, str], Fit] = learn_apart,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises OSError or sqlite3.Error if the log can't be written."""
        self._settings = settings
        self._directory = directory
        self._learn = learn
        self._log = RequestLog(directory, MAX_LOGGED)
        self._clock = clock
        self._looked_s = clock()
        self._failed_fits = 0
        self._fit: Fit | None = None  # that was begun

    def take(self, records: list[AnswerRecord]) -> None:
        if records:
            self._log.add(records)

    def learn_if_due(self) -> bool:
        """Looks every `relearn_s` whether there is something to learn, and whether what was begun has ended.
        Returns whether something was learned. After a failure it looks again later and later. Raises OSError
        if the log was deleted or replaced: another learner begins a new one.
        """
        if self._fit is None and self._is_due():
            self._fit = self._learn(self._directory, self._settings.encoder)
        code = self._fit() if self._fit is not None else None
        if code is None:
            return False
        self._fit = None
        self._failed_fits = 0 if code == 0 else self._failed_fits + 1
        if code != 0:
            log.warning("learning failed (exit code %s); it is tried again in %.0f s", code, self._pause_s)
        return code == 0

    @property
    def _pause_s(self) -> float:
        return self._settings.relearn_s * 2.0 ** min(self._failed_fits, MOST_DOUBLINGS)

    def _is_due(self) -> bool:
        now_s = self._clock()
        if now_s - self._looked_s < self._pause_s:
            return False
        self._looked_s = now_s
        self._log.check_place()
        for learned in Learned:
            last = current(self._directory, learned)
            if last is not None and existing(self._directory, learned) is None:
                log.warning("%s is gone: it is learned again", last.path(self._directory))
        return bool(what_is_due(self._log, self._directory, self._settings.encoder))

    def close(self) -> None:
        self._log.close()


def lock(directory: Path, is_over: Callable[[], bool]) -> BinaryIO | None:
    """Waits for the lock that allows to write in `directory`, until no other learner holds it. None if
    `is_over` returns True first. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    while not is_over():
        if (held := locked_file(directory / LOCK)) is not None:
            return held
        time.sleep(1.0)
    return None


def main(run_directory: Path) -> None:
    setproctitle.setproctitle("gapless-learner")
    stand_back()
    logging.basicConfig(level=logging.INFO, format="learner: %(message)s", stream=sys.stderr)
    stopping: list[int] = []
    for name in (ASK, signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda signum, _frame: stopping.append(signum))
    settings = read_settings(run_directory / SETTINGS)
    directory = directory_of(settings)
    held = lock(directory, lambda: bool(stopping))
    if held is None:
        return
    learner, link = Learner(settings.prediction, directory), LearnerEnd(run_directory)
    while not stopping:
        learner.take(link.receive(WRITE_EVERY_S))
        if learner.learn_if_due():
            log.info("learned: %s", [current(directory, each) for each in Learned])
    learner.take(link.receive(0.0))
    link.close()
    learner.close()
    held.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except (OSError, sqlite3.Error) as error:
        log.error("the learner ends, so no answers are logged and nothing is learned: %s", error)
        sys.exit(1)
