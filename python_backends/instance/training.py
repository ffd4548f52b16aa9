"""Trains adapters in the time that serving leaves, piece by piece, between two steps of the loop. A window of
the forward pass may be in a step.

Owns the jobs that this instance has taken, and the times of their pieces. The loop calls `work` and `window`
before a step, and `computed` after a step with a window; the thread that finds jobs (`job_watch`) offers
them. Files are written by a thread of their own. A job that fails ends alone; one whose instance dies goes on
after its last checkpoint in the next instance that takes it. Tested in tests/cpu/test_coserving.py.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from python_backends.engine.protocol import Session, Trains
from python_backends.finetuning.jobs import Job, JobError
from python_backends.finetuning.pack_memory import Pool
from python_backends.finetuning.trainer import Files, Kind, Piece, Pieces, Progress, Trainer
from python_backends.nouns.messages import TrainingLoad
from python_backends.nouns.request import ModelLimits
from python_backends.nouns.step import StepPlan
from python_backends.nouns.training import AdapterShape, Loads, Window
from python_backends.scheduling import training_budget
from python_backends.scheduling.piece_time import NOTHING, PieceTime, loads, loss_loads
from python_backends.settings import FinetuningSettings

log = logging.getLogger("gapless.instance")

WAITING = (Kind.WAIT, Kind.MEMORY)
WAIT_S = 0.005  # while all jobs wait
# A piece that never fits is tried after so long nevertheless, since its time may have been measured wrongly;
# each time after twice as long.
RETRY_S, MOST_RETRY_S = 2.0, 128.0


@dataclass(slots=True)
class _Running:
    job: Job
    lock: ExitStack
    trainer: Trainer
    pieces: Pieces
    piece: Piece
    tokens: int  # trained in this instance, and what the others had when it came


class Training:
    """`limits` are the engine's. One thread uses it, except for `takes_jobs`, `offer` and `count_jobs`, which
    are for the thread that finds jobs.
    """

    def __init__(
        self,
        engine: Trains,
        limits: ModelLimits,
        pool: Pool,
        window_time: PieceTime,
        settings: FinetuningSettings,
        adapters: Path | None = None,
    ) -> None:
        """Packs borrow KV blocks of `pool`. `window_time`: what windows add to steps, as the steps tell.
        Trained adapters are published in `adapters`.
        """
        self._engine, self._limits, self._settings = engine, limits, settings
        self._pool, self._window_time = pool, window_time
        self.tpot_s, self.idle_s = settings.tpot_ms / 1000, settings.idle_ms / 1000
        self._files = Files(ThreadPoolExecutor(1, "finetuning-files"), adapters)
        self._offered: deque[tuple[Job, ExitStack]] = deque()
        self._running: list[_Running] = []
        self._current: _Running | None = None  # its mini-batch is computed
        self._new_session: Callable[[AdapterShape, int], Session] | None = None
        self._times: dict[Kind, PieceTime] = defaultdict(PieceTime)
        self._retry_s, self._stuck_s = RETRY_S, time.monotonic()
        self._slack_s = self._until_s = 0.0  # of the latest `work`, and when it ends
        self._report = TrainingLoad()  # without the jobs
        self._num_jobs: tuple[int, ...] = ()  # by JOB_STATUSES

    @property
    def has_work(self) -> bool:
        return bool(self._offered or self._running)

    @property
    def takes_jobs(self) -> bool:
        """Whether there are fewer than `finetuning.max_jobs`."""
        return len(self._offered) + len(self._running) < self._settings.max_jobs

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
        """`lock` is released when the job has ended here."""
        self._offered.append((job, lock))

    def count_jobs(self, counts: tuple[int, ...]) -> None:
        """Of the job directory, in the order of JOB_STATUSES."""
        self._num_jobs = counts

    def work(self, slack_s: float, plan: StepPlan | None) -> bool:
        """Trains for `slack_s` before the step of `plan`, if a piece fits; at least one piece where there is
        no step. Whether it did. A window that is to be in the step is left to it.
        """
        self._slack_s, self._until_s, has_worked = slack_s, time.monotonic() + slack_s, False
        self._take_offered()
        for each in [each for each in self._running if each.piece.kind in WAITING]:
            self._go_on(each, 0)
        while (current := self._choose()) is not None and not self._is_fused(current.piece, plan):
            must = plan is None and not has_worked
            tokens = self._tokens(current.piece, must or self._is_stuck)
            if not tokens:
                break
            self._compute(current, tokens)
            has_worked = True
        return has_worked

    def window(self, plan: StepPlan) -> Window | None:
        """The window that is computed in the step of `plan`, in what `work` has left of its time."""
        current = self._current
        if current is None or current.piece.pack is None or not self._is_fused(current.piece, plan):
            return None
        pack, first, num_rows = current.piece.pack, current.piece.place, len(plan.slots)
        seconds = self._until_s - time.monotonic()
        tokens = training_budget.fused_window(
            seconds, self._window_time, pack, first, num_rows, self._engine.padded
        )
        if not tokens and self._is_stuck:
            tokens = min(training_budget.LEAST, len(pack.tokens) - first)
        return Window(first, first + tokens, loads(pack, first, first + tokens)) if tokens else None

    def computed(self, window: Window) -> None:
        """A step has computed `window`, and its tokens are published."""
        assert self._current is not None
        self._go_on(self._current, window.last - window.first)
        self._note_progress(self._until_s - self._slack_s)

    def take_report(self) -> TrainingLoad | None:
        """What was trained since the last report; None while there is nothing to tell."""
        report = self._report.changed(jobs=self._num_jobs)
        self._report = TrainingLoad(loss=report.loss)
        return report if any(report.jobs) else None

    def close(self) -> None:
        """Writes a checkpoint of every job after its last step, for the next instance."""
        while self._current is not None and self._current.trainer.is_updating:
            self._go_on(self._current, 1)
        for each in self._running:
            each.trainer.save()
            self._files.writer.submit(each.job.say, "its instance ends")
        self._files.writer.shutdown()
        for job_lock in [*(each.lock for each in self._running), *(lock for _, lock in self._offered)]:
            job_lock.close()

    # --- jobs begin and end

    def _take_offered(self) -> None:
        while self._offered:
            job, lock = self._offered[0]
            try:
                self._begin(job, lock)
            except Exception as error:
                self._fail(job, error)
                lock.close()
            self._offered.popleft()  # only now, so that `takes_jobs` never misses it
            self._free_if_idle()

    def _begin(self, job: Job, lock: ExitStack) -> None:
        if self._new_session is None:
            self._new_session = self._engine.start_training()
        self._check(job)
        session = self._new_session(job.shape, int(job.fields["seed"]))
        trainer = Trainer(job, session, self._settings, self._files, self._learned, self._pool)
        pieces = trainer.pieces()
        tokens = min((each.tokens for each in self._running), default=0)
        running = _Running(job, lock, trainer, pieces, Piece(Kind.WAIT), tokens)
        self._running.append(running)
        log.info("%s: training begins", job.id)
        self._go_on(running, None)

    def _check(self, job: Job) -> None:
        """What the submitter has checked with its own settings may not fit here."""
        most, vocabulary = self._limits.max_model_tokens, self._limits.vocab_size
        for number, example in enumerate(job.examples, 1):
            if len(example.ids) > most:
                raise JobError(
                    f"example {number} has {len(example.ids)} tokens; the server takes {most}"
                    " (model.max_model_tokens)"
                )
            if not 0 <= example.ids.min() <= example.ids.max() < vocabulary:
                raise JobError(f"example {number} has tokens outside of the vocabulary of {vocabulary}")

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
        """The second copy of the weights."""
        if not self.has_work:
            self._new_session = None
            self._engine.end_training()
            gc.collect()

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

    def _is_fused(self, piece: Piece, plan: StepPlan | None) -> bool:
        """Whether `piece` is a window that is to be in a step, and that of `plan` can have one."""
        return piece.kind == Kind.WINDOW and plan is not None and not len(plan.tokens)

    def _tokens(self, piece: Piece, must: bool) -> int:
        """How many tokens `piece` has if it is to end in time, and 1 for one without tokens; 0: it does not
        fit. If it `must` be computed, it is as small as can be.
        """
        times, pack, seconds = self._times[piece.kind], piece.pack, self._until_s - time.monotonic()
        if pack is None:
            return int(must or times.seconds(NOTHING) <= seconds)
        if piece.kind == Kind.LOSS:
            tokens = training_budget.loss(seconds, times, pack, piece.place, piece.last)
        elif piece.kind == Kind.BACKWARD:
            tokens = training_budget.backward(seconds, times, pack, piece.place)
        else:
            tokens = training_budget.forward(seconds, times, pack, piece.place)
        return tokens or (training_budget.LEAST if must else 0)

    @property
    def _is_stuck(self) -> bool:
        return self._slack_s > 0 and time.monotonic() - self._stuck_s > self._retry_s

    def _compute(self, running: _Running, tokens: int) -> None:
        piece, began_s = running.piece, time.monotonic()
        self._go_on(running, tokens)
        self._note_progress(began_s)
        self._times[piece.kind].observe(_loads(piece, tokens), self._stuck_s - began_s)

    def _note_progress(self, began_s: float) -> None:
        is_retry = began_s - self._stuck_s > self._retry_s
        self._retry_s = min(MOST_RETRY_S, 2 * self._retry_s) if is_retry else RETRY_S
        self._stuck_s = time.monotonic()

    def _go_on(self, running: _Running, tokens: int | None) -> None:
        """The next piece of a job; None: its first one."""
        try:
            running.piece = next(running.pieces) if tokens is None else running.pieces.send(tokens)
        except StopIteration:
            self._end(running)
        except Exception as error:
            self._fail(running.job, error)
            self._end(running)


def _loads(piece: Piece, tokens: int) -> Loads:
    if piece.pack is None:
        return NOTHING
    if piece.kind == Kind.LOSS:
        return loss_loads(piece.pack, piece.place, min(piece.last, piece.place + tokens))
    if piece.kind == Kind.BACKWARD:
        return loads(piece.pack, max(0, piece.place - tokens), piece.place)
    return loads(piece.pack, piece.place, min(len(piece.pack.tokens), piece.place + tokens))
