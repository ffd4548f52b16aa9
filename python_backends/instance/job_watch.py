"""The thread that finds jobs: it looks at the job directory once a second, so that the loop need not.

A job is taken by its lock, so exactly one of several instances trains it. Jobs that run but are not locked
are those of an instance that has died. Those of `submit --alone` are left alone.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from python_backends.finetuning.jobs import ENDED, Job, JobError, read_jobs
from python_backends.finetuning.watchers import USUAL, announced, trains
from python_backends.nouns.load import JOB_STATUSES
from python_backends.settings import ServerSettings

if TYPE_CHECKING:
    from python_backends.instance.training import Training

log = logging.getLogger("gapless.instance")

EVERY_S = 1.0


class JobWatch:
    """Gives the jobs in `directory` to `training`, and wakes the loop. Where `training` is None, `refusal`
    says why: each job fails with it, unless another instance trains.
    """

    def __init__(
        self,
        directory: Path,
        training: Training | None,
        refusal: str,
        wake: Callable[[], None],
        server: ServerSettings = USUAL,
    ) -> None:
        self._directory, self._training, self._refusal, self._wake = directory, training, refusal, wake
        self._server = server
        self._ended: dict[str, str] = {}  # status of jobs that have ended, which does not change any more
        self._bad: dict[str, str] = {}  # jobs that can't be read, and why; they are tried again
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="finetuning-jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def look(self) -> None:
        """Takes the jobs that can be taken now, the oldest first."""
        jobs = self._jobs()
        for job in jobs:
            self._offer(job)
        if self._training is not None:
            statuses = [*self._ended.values(), *(job.status for job in jobs), *["failed"] * len(self._bad)]
            counts = Counter(statuses)
            self._training.count_jobs(tuple(counts[status] for status in JOB_STATUSES))

    def _watch(self) -> None:
        try:
            with announced(self._directory, self._refusal, self._server):
                self._look_again_and_again()
        except OSError as error:
            if self._training is not None:
                log.info("no fine-tuning jobs are taken (finetuning.directory): %s", error)

    def _look_again_and_again(self) -> None:
        last = ""
        while not self._closed.is_set():
            try:
                self.look()
            except Exception as error:
                if str(error) != last:  # it is tried again every second
                    log.warning("the jobs in %s can't be taken: %s", self._directory, error)
                last = str(error)
            self._closed.wait(EVERY_S)

    def _jobs(self) -> list[Job]:
        """Those that have not ended, the oldest first."""
        there = {path.name for path in self._directory.glob("ftjob-*")}
        self._ended = {name: status for name, status in self._ended.items() if name in there}
        bad: dict[str, str] = {}
        found = read_jobs(self._directory, bad.__setitem__, self._ended)
        for name in bad:
            if bad[name] != self._bad.get(name):
                log.warning("%s", bad[name])
        self._bad = bad
        self._ended |= {job.id: job.status for job in found if job.status in ENDED}
        return sorted((job for job in found if job.status not in ENDED), key=lambda job: job.order)

    def _offer(self, job: Job) -> None:
        if job.is_alone or (self._training is not None and not self._training.takes_jobs):
            return
        with ExitStack() as stack:
            try:
                stack.enter_context(job.locked())
            except JobError:
                return  # it is trained, here or elsewhere
            if job.status in ENDED:
                return
            if self._training is None and trains(self._directory):
                return
            if self._training is None:
                job.fail("unsupported_engine", self._refusal)
                return
            self._training.offer(job, stack.pop_all())
            self._wake()
