"""Trains adapters in the time that serving leaves, piece by piece, between two steps of the loop.

Owns the jobs that this instance has taken, and the times of their pieces. The thread that finds jobs
(`job_watch`) offers them. Files are written by a thread of their own. A job that fails ends alone; one whose
instance dies goes on after its last saved state in the next instance that takes it.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from python_backends.engine.protocol import AdapterInTraining, Trains
from python_backends.finetuning.asked_trainer import AskedTrainer
from python_backends.finetuning.jobs import Job
from python_backends.finetuning.pack_memory import PackMemory, Pool
from python_backends.finetuning.pieces import Kind, Piece
from python_backends.finetuning.prepared import Prepared, prepare
from python_backends.finetuning.trainer import Files, Progress, Trainer
from python_backends.instance.spare_time import SpareWork
from python_backends.linux.freed_memory import give_back_freed_memory
from python_backends.nouns.load import Load, TrainingLoad
from python_backends.nouns.request import ModelLimits
from python_backends.nouns.step import StepPlan
from python_backends.nouns.training import AdapterShape
from python_backends.scheduling.piece_time import PieceTime
from python_backends.scheduling.training_budget import LEAST, most_tokens

log = logging.getLogger("gapless.instance")

NewAdapter = Callable[[AdapterShape, int], AdapterInTraining]
WAITING = (Kind.WAIT, Kind.MEMORY)
MAX_JOBS = 2  # that are trained in turn: each has its moments in memory
WAIT_S = 0.005  # while all jobs wait
# A piece that never fits is tried after so long nevertheless, since its time may have been measured wrongly;
# each time after twice as long.
RETRY_S, MOST_RETRY_S = 2.0, 128.0


@dataclass(slots=True)
class _Running:
    job: Job
    lock: ExitStack
    trainer: Trainer | AskedTrainer
    tokens: int  # trained in this instance, and what the others had when it came

    @property
    def piece(self) -> Piece:
        return self.trainer.piece


class Training(SpareWork):
    """`limits` are the engine's. One thread uses it, except for `takes_jobs`, `offer` and `count_jobs`, which
    are for the thread that finds jobs.
    """

    def __init__(
        self,
        engine: Trains,
        limits: ModelLimits,
        pool: Pool,
        adapters: Path | None = None,
        published: Callable[[], None] = lambda: None,
    ) -> None:
        """Packs borrow KV blocks of `pool`. Trained adapters are published in `adapters`; then `published` is
        called, by another thread.
        """
        self._engine, self._limits, self._pool = engine, limits, pool
        self._files = Files(ThreadPoolExecutor(1, "finetuning-files"), adapters, published)
        self._offered: deque[tuple[Job, ExitStack, Prepared | None, NewAdapter]] = deque()
        self._running: list[_Running] = []
        self._current: _Running | None = None  # its mini-batch is computed
        self._new_adapter: NewAdapter | None = None
        self._times: dict[Kind, PieceTime] = defaultdict(PieceTime)
        self._retry_s, self._stuck_s = RETRY_S, time.monotonic()
        self._slack_s = self._until_s = 0.0  # of the latest `work`, and when it ends
        self._report = TrainingLoad()  # without the jobs
        self._num_jobs: tuple[int, ...] = ()  # by JOB_STATUSES
        self._has_reported_jobs = False

    @property
    def has_work(self) -> bool:
        return bool(self._offered or self._running)

    @property
    def takes_jobs(self) -> bool:
        """Whether there are fewer than MAX_JOBS."""
        return len(self._offered) + len(self._running) < MAX_JOBS

    @property
    def patience_s(self) -> float:
        """How long an idle loop may wait for messages before the next piece."""
        all_wait = all(each.piece.kind in WAITING for each in self._running)
        return WAIT_S if not self._offered and (all_wait or self._lacks_memory) else 0.0

    @property
    def _lacks_memory(self) -> bool:
        """In the middle of a mini-batch, so that no other job can be computed."""
        return self._current is not None and self._current.piece.kind == Kind.MEMORY

    def offer(self, job: Job, lock: ExitStack) -> None:
        """`lock` is released when the job has ended here. The job's files are read and checked at once, in
        the caller's thread; what the submitter has checked with its own settings may not fit here. So are
        weights that only training has, where no other job has them yet.
        """
        try:
            read = None if job.is_asked else prepare(job)
            for examples in filter(None, (read.examples, read.held_out) if read is not None else ()):
                examples.check(self._limits.max_model_tokens, self._limits.vocab_size)
            new_adapter = self._new_adapter or self._engine.start_training()
        except Exception as error:
            self._fail(job, error)
            lock.close()
            return
        self._offered.append((job, lock, read, new_adapter))

    def count_jobs(self, counts: tuple[int, ...]) -> None:
        """Of the job directory, in the order of JOB_STATUSES."""
        self._num_jobs = counts

    def work(self, slack_s: float, plan: StepPlan | None) -> bool:
        """At least one piece where there is no step."""
        self._slack_s, self._until_s, has_worked = slack_s, time.monotonic() + slack_s, False
        self._take_offered()
        for each in [each for each in self._running if each.piece.kind in WAITING]:
            self._go_on(each, 0)
        while (current := self._choose()) is not None:
            must = plan is None and not has_worked
            tokens = self._tokens(current, must or self._is_stuck)
            if not tokens:
                break
            self._compute(current, tokens)
            has_worked = True
        return has_worked

    def report(self, load: Load) -> Load:
        """With what was trained since the last report."""
        report = self._report.changed(jobs=self._num_jobs)
        self._report = TrainingLoad(loss=report.loss)
        had_jobs, self._has_reported_jobs = self._has_reported_jobs, any(report.jobs)
        return load.changed(training=report) if had_jobs or self._has_reported_jobs else load

    def close(self) -> None:
        """Writes a saved state of every job after its last step, for the next instance."""
        while self._current is not None and self._current.trainer.is_updating:
            self._go_on(self._current, 1)
        for each in self._running:
            each.trainer.save()
            self._files.writer.submit(each.job.say, "its instance ends")
        self._files.writer.shutdown()
        for job_lock in [*(each.lock for each in self._running), *(lock for _, lock, *_ in self._offered)]:
            job_lock.close()

    # --- jobs begin and end

    def _take_offered(self) -> None:
        while self._offered:
            job, lock, read, new_adapter = self._offered[0]
            try:
                self._new_adapter = self._new_adapter or new_adapter
                self._begin(job, lock, read)
            except Exception as error:
                self._fail(job, error)
                lock.close()
            self._offered.popleft()  # only now, so that `takes_jobs` never misses it
            self._free_if_idle()

    def _begin(self, job: Job, lock: ExitStack, read: Prepared | None) -> None:
        assert self._new_adapter is not None
        adapter = self._new_adapter(job.shape, int(job.fields["seed"]))
        files = replace(self._files, read=read)
        memory = PackMemory(adapter, self._pool)
        kind: type[Trainer] | type[AskedTrainer] = AskedTrainer if job.is_asked else Trainer
        trainer = kind(job, adapter, memory, files, self._learned)
        tokens = min((each.tokens for each in self._running), default=0)
        running = _Running(job, lock, trainer, tokens)
        self._running.append(running)
        log.info("%s: training begins", job.id)
        self._advance(running, trainer.begin)

    def _fail(self, job: Job, error: Exception) -> None:
        if not isinstance(error, ValueError):
            log.exception("%s: training failed", job.id)
        try:
            job.fail("invalid_job" if isinstance(error, ValueError) else "server_error", str(error))
        except OSError as full:
            log.error("%s: failed, and that can't be written: %s", job.id, full)

    def _end(self, running: _Running) -> None:
        running.lock.close()
        self._running.remove(running)
        log.info("%s: training has ended", running.job.id)
        if self._current is running:
            self._current = None
        self._free_if_idle()

    def _free_if_idle(self) -> None:
        """The copies of the weights that only training has."""
        if not self.has_work:
            self._new_adapter = None
            gc.collect()
            give_back_freed_memory()

    def _learned(self, progress: Progress) -> None:
        assert self._current is not None
        self._current.tokens += progress.tokens
        report = self._report
        self._report = report.changed(
            tokens=report.tokens + progress.tokens,
            wasted_tokens=report.wasted_tokens + progress.wasted_tokens,
            steps=report.steps + 1,
            loss=progress.loss,
        )

    # --- pieces

    def _choose(self) -> _Running | None:
        """The job whose mini-batch is computed; between two mini-batches the one that has trained least. None
        if it waits: no other can be computed in the middle of a mini-batch.
        """
        if self._lacks_memory:
            return None
        if self._current is None or self._current.piece.kind in (Kind.BEGIN, Kind.WAIT):
            ready = [each for each in self._running if each.piece.kind != Kind.WAIT]
            self._current = min(ready, key=lambda each: each.tokens, default=None)
        return self._current

    def _tokens(self, running: _Running, must: bool) -> int:
        """How many tokens its piece has if it is to end in time, and 1 for one without tokens; 0: it does not
        fit. If it `must` be computed, it is as small as can be.
        """
        piece, most = running.piece, running.trainer.tile_tokens
        times, seconds = self._times[piece.kind], self._until_s - time.monotonic()
        if piece.pack is None:
            return int(must or times.seconds(piece.loads(0)) <= seconds)
        tokens = most_tokens(seconds, times, piece.last - piece.first, piece.loads, most)
        return tokens or (LEAST if must else 0)

    @property
    def _is_stuck(self) -> bool:
        return self._slack_s > 0 and time.monotonic() - self._stuck_s > self._retry_s

    def _compute(self, running: _Running, tokens: int) -> None:
        piece, began_s = running.piece, time.monotonic()
        self._advance(running, partial(_do_whole, running.trainer, tokens))
        is_retry = began_s - self._stuck_s > self._retry_s
        self._retry_s = min(MOST_RETRY_S, 2 * self._retry_s) if is_retry else RETRY_S
        self._stuck_s = time.monotonic()
        self._times[piece.kind].observe(piece.loads(tokens), self._stuck_s - began_s)

    def _go_on(self, running: _Running, tokens: int) -> None:
        self._advance(running, partial(running.trainer.do, tokens))

    def _advance(self, running: _Running, trainer_does: Callable[[], None]) -> None:
        try:
            trainer_does()
        except Exception as error:
            self._fail(running.job, error)
            self._end(running)
        else:
            if running.piece.kind == Kind.END:
                self._end(running)


def _do_whole(trainer: Trainer | AskedTrainer, tokens: int) -> None:
    """The next piece, until the device has done it: its time is measured."""
    trainer.do(tokens)
    trainer.wait()
