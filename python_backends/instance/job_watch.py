"""The thread that finds jobs: it looks at the job directory once a second, so that the loop need not.

A job is taken by its lock, so exactly one of several instances trains it. Jobs that run but are not locked
are those of an instance that has died. Those of `submit --alone` are left alone.
Tested in tests/cpu/test_coserving.py.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from python_backends.finetuning.jobs import ENDED, Job, JobError
from python_backends.finetuning.watchers import announced, trains
from python_backends.instance.training import Training
from python_backends.nouns.messages import JOB_STATUSES

log = logging.getLogger("gapless.instance")

EVERY_S = 1.0


class JobWatch:
    """Gives the jobs in `directory` to `training`, and wakes the loop. Where `training` is None, `refusal`
    says why: each job fails with it, unless another instance trains.
    """

    def __init__(
        self, directory: Path, training: Training | None, refusal: str, wake: Callable[[], None]
    ) -> None:
        self._directory, self._training, self._refusal, self._wake = directory, training, refusal, wake
        self._ended: dict[str, str] = {}  # status of jobs that have ended, which does not change any more
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
            counts = Counter([*self._ended.values(), *(job.status for job in jobs)])
            self._training.count_jobs(tuple(counts[status] for status in JOB_STATUSES))

    def _watch(self) -> None:
        try:
            with announced(self._directory, self._refusal):
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
        """Those that have not ended."""
        found = []
        for path in self._directory.glob("ftjob-*/job.json"):
            name = path.parent.name
            if name in self._ended or name.endswith(".partial"):
                continue
            try:
                job = Job(path.parent)
            except JobError as error:
                log.warning("%s", error)
                self._ended[name] = "failed"
                continue
            if job.status in ENDED:
                self._ended[name] = job.status
            else:
                found.append(job)
        return sorted(found, key=lambda job: (job.fields["created_at"], job.id))

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
