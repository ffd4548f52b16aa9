"""Trains a job, mini-batch by mini-batch, in pieces: tiles of the forward pass, the loss, tiles of the
backward pass, the update of a layer. Between two pieces the caller does something else, such as serving;
without a server the next piece follows at once. Where windows are in steps of serving, they take the place of
the forward tiles; one that a step has computed is not computed again.

The loss of a mini-batch is the mean over its label tokens, however many packs it has. A job that was killed
goes on after its last checkpoint; what came later is computed again. Tested in tests/cpu/test_finetuning.py.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from python_backends.engine.protocol import Session
from python_backends.finetuning import checkpoints
from python_backends.finetuning.cursor import PackCursor
from python_backends.finetuning.jobs import Job
from python_backends.finetuning.pack_memory import PackMemory, Pool, RevokedError
from python_backends.finetuning.packs import mini_batch, packs, steps_a_pass
from python_backends.finetuning.pruning import first_layer
from python_backends.finetuning.publish import finish
from python_backends.nouns.training import Pack
from python_backends.settings import FinetuningSettings

CLIP = 1.0  # the largest global norm of the gradients
NUM_TILE_TOKENS = 256  # without a server; more take no less time each
MOST_DEATHS = 3  # of processes that trained after the same step: then the job fails


class Kind(StrEnum):
    BEGIN = "begin"  # of a mini-batch: another job may be trained before it
    FORWARD = "forward"  # a tile
    WINDOW = "window"  # forward, all layers; in a step of serving, if it can be
    LOSS = "loss"
    BACKWARD = "backward"  # a tile
    CLIP = "clip"
    UPDATE = "update"
    SAVE = "save"
    WAIT = "wait"  # for files that are written meanwhile
    MEMORY = "memory"  # waits for KV blocks that requests hold


@dataclass(frozen=True, slots=True)
class Piece:
    """What is computed next. Where it has a pack, the caller says how many tokens at most."""

    kind: Kind
    pack: Pack | None = None
    place: int = 0  # the first token; of a backward tile the end
    last: int = 0  # the end of the tokens whose loss is due


Pieces = Generator[Piece, int, None]


@dataclass(frozen=True, slots=True)
class Progress:
    """After a step: for the picture of a job that is trained."""

    step: int
    num_steps: int
    loss: float
    tokens: int  # of this step, with a forward and a backward pass
    wasted_tokens: int = 0  # whose forward pass was computed since the last step, and will be again


@dataclass(frozen=True, slots=True)
class _Batch:
    """A mini-batch that is computed."""

    loss: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Files:
    """Where a job's files are written, in order."""

    writer: Executor
    adapters: Path | None = None  # where its adapter is published


class Trainer:
    """`session` trains what `job` asks for. `watch` sees every step; `files` writes files. Packs borrow
    blocks of `pool`; None: they have memory of their own.
    """

    def __init__(
        self,
        job: Job,
        session: Session,
        settings: FinetuningSettings,
        files: Files,
        watch: Callable[[Progress], None] = lambda progress: None,
        pool: Pool | None = None,
    ) -> None:
        self._job, self._session, self._settings, self._watch = job, session, settings, watch
        self._writer, self._adapters, self._written = files.writer, files.adapters, _done()
        self._examples = job.examples
        self._batch_size = int(job.fields["hyperparameters"]["batch_size"])
        self._seed = int(job.fields["seed"])
        self._learning_rate = float(job.options["learning_rate"])
        self.num_steps = int(job.options["steps"])
        self._checkpoints = job.directory / "checkpoints"
        self._memory = PackMemory(session, settings, pool)
        self._step = self._trained_tokens = self._saved_step = 0
        self._wasted_tokens = 0  # since the last step
        self.is_updating = False  # the weights are between two steps
        self._began_s = self._saved_s = time.monotonic()
        self._began_step = 0

    def run(self) -> None:
        """Until the job has ended, and job.json says how."""
        pieces = self.pieces()
        with contextlib.suppress(StopIteration):
            next(pieces)
            while True:
                pieces.send(NUM_TILE_TOKENS)

    def pieces(self) -> Pieces:
        """Yields what comes next, and does it when it is sent how many tokens that may have. Ends when the
        job has ended, and job.json says how.
        """
        if not self._resume():
            return
        while self._step < self.num_steps:
            if self._job.is_cancel_asked:
                yield from self._end("cancelled", "cancelled")
                return
            yield Piece(Kind.BEGIN)
            try:
                batch = yield from self._mini_batch()
            except RevokedError:
                continue
            if not math.isfinite(batch.loss):
                yield from self._diverged(batch.loss)
                return
            yield from self._update(batch)
            if self._is_save_due():
                yield Piece(Kind.SAVE)
                self.save()
        yield from _wait_for(self._written)
        self._written.result()  # OSError if the last checkpoint could not be written
        finished = self._writer.submit(finish, self._job, self._adapters)
        yield from _wait_for(finished)
        fields = self._job.fields
        name = f"ft:{fields['model']}:{self._job.options['suffix']}:{self._job.id}"
        options = {**self._job.options, "adapter": finished.result()}
        yield from self._end("succeeded", "succeeded", fine_tuned_model=name, gapless=options)

    def save(self) -> None:
        """A checkpoint after the last whole step, if there is none yet. One that can't be written is an event
        of the job; the next one is tried when it is due.
        """
        if self.is_updating or self._step == self._saved_step:
            return
        place = checkpoints.Place(self._step, self._trained_tokens, self._ends_pass)
        self._written = self._writer.submit(self._write, place, self._session.state)
        self._saved_step, self._saved_s = self._step, time.monotonic()

    def _write(self, place: checkpoints.Place, state: checkpoints.State) -> None:
        """Called by `writer`; nothing else changes job.json meanwhile."""
        try:
            checkpoints.save(self._checkpoints, place, state)
            self._job.change(trained_tokens=place.trained_tokens, estimated_finish=self._estimate(place.step))
        except OSError as error:
            self._job.say(f"no checkpoint after step {place.step}: {error}", "warn")
            raise

    def _estimate(self, step: int) -> int:
        """The Unix time at which the job ends if it goes on as it did."""
        step_s = (time.monotonic() - self._began_s) / max(1, step - self._began_step)
        return int(time.time() + step_s * (self.num_steps - step))

    def _resume(self) -> bool:
        """False if the job has failed now, because processes died of it."""
        found = checkpoints.last(self._checkpoints)
        message = "started"
        if found is not None:
            place, state = found
            self._session.resume(state, place.step)
            self._step, self._trained_tokens = place.step, place.trained_tokens
            self._saved_step = self._began_step = place.step
            message = f"goes on after step {place.step}"
        self._wasted_tokens = self._job.mend(self._step)
        if [event["message"] for event in self._job.events[-MOST_DEATHS:]] == [message] * MOST_DEATHS:
            text = f"{MOST_DEATHS} processes died after step {self._step}, before a later checkpoint"
            self._job.fail("server_error", text)
            return False
        self._job.say(message)
        self._job.change(status="running")
        return True

    def _mini_batch(self) -> Generator[Piece, int, _Batch]:
        """Raises RevokedError."""
        chosen = mini_batch(len(self._examples), self._batch_size, self._seed, self._step)
        examples = [self._examples[int(index)] for index in chosen]
        made = list(packs(examples, self._memory.pack_tokens))
        while (plans := self._memory.plans_for(made)) is None:
            if self._memory.shrink_if_too_large(made):
                made = list(packs(examples, self._memory.pack_tokens))
            else:
                yield from self._wait_for_memory()
        num_labels = sum(pack.num_labels for pack in made)
        self._session.install(plans)
        loss = 0.0
        for pack in made:
            while not self._memory.begin(pack, plans, num_labels):
                yield from self._wait_for_memory()
            try:
                loss += yield from self._pack(pack)
            except RevokedError:
                self._wasted_tokens += sum(len(each.tokens) for each in made[: made.index(pack) + 1])
                raise
            finally:
                self._memory.end()
        return _Batch(loss, sum(len(pack.tokens) for pack in made))

    def _wait_for_memory(self) -> Pieces:
        """Raises RevokedError if the job is to be cancelled: it may wait for long."""
        yield Piece(Kind.MEMORY)
        if self._job.is_cancel_asked:
            raise RevokedError

    def _pack(self, pack: Pack) -> Generator[Piece, int, float]:
        """Raises RevokedError."""
        cursor = PackCursor(len(pack.tokens), self._num_layers, first_layer(self._session.targets))
        loss = 0.0
        while not cursor.is_computed:
            yield from self._forward(pack, cursor)
            while cursor.is_loss_due:
                most = yield Piece(Kind.LOSS, pack, cursor.tokens_with_loss, cursor.computed_tokens)
                self._memory.check()
                loss += self._session.loss(*cursor.take_loss(most))
        while not cursor.is_done:
            most = yield Piece(Kind.BACKWARD, pack, cursor.open_tokens)
            self._memory.check()
            self._session.backward(cursor.take_backward(most))
        return loss

    def _forward(self, pack: Pack, cursor: PackCursor) -> Pieces:
        """The next tile or window."""
        if self._settings.windows == "fused":
            most = yield Piece(Kind.WINDOW, pack, cursor.computed_tokens)
            self._memory.check()
            self._session.window(*cursor.take_window(most))
        else:
            most = yield Piece(Kind.FORWARD, pack, cursor.forward_first)
            self._memory.check()
            self._session.forward(cursor.take_forward(most))

    def _update(self, batch: _Batch) -> Pieces:
        """The weights change layer by layer."""
        yield Piece(Kind.CLIP)
        norm = self._session.clip(CLIP)
        for layer in range(self._num_layers):
            yield Piece(Kind.UPDATE)
            self.is_updating = True
            self._session.update(layer, self._learning_rate)
        self.is_updating = False
        self._step += 1
        self._trained_tokens += batch.tokens
        rate = self._learning_rate
        self._job.add_loss(
            step=self._step, loss=batch.loss, tokens=batch.tokens, learning_rate=rate, grad_norm=norm
        )
        wasted, self._wasted_tokens = self._wasted_tokens, 0
        self._watch(Progress(self._step, self.num_steps, batch.loss, batch.tokens, wasted))

    @property
    def _num_layers(self) -> int:
        return len(self._session.facts)

    @property
    def _ends_pass(self) -> bool:
        return self._step % steps_a_pass(len(self._examples), self._batch_size) == 0

    def _is_save_due(self) -> bool:
        """At the end of a pass and of the job, and when the last checkpoint is old and written."""
        is_old = time.monotonic() - self._saved_s >= self._settings.checkpoint_every_s
        return self._ends_pass or self._step == self.num_steps or (is_old and self._written.done())

    def _diverged(self, loss: float) -> Pieces:
        message = f"the loss of step {self._step + 1} is {loss}: try a smaller learning rate"
        error = {"code": "invalid_loss", "message": message, "param": "learning_rate"}
        yield from self._end("failed", message, error=error)

    def _end(self, status: str, message: str, **fields: object) -> Pieces:
        yield from _wait_for(self._written)  # a checkpoint that failed does not matter any more
        self._job.end(status, message, trained_tokens=self._trained_tokens, **fields)


def _wait_for(files: Future[Any]) -> Pieces:
    """Until they are written, or can't be."""
    while not files.done():
        yield Piece(Kind.WAIT)


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done
