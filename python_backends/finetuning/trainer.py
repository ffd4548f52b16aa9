"""Trains a job, mini-batch by mini-batch, in pieces: tiles of the forward pass, the loss, tiles of the
backward pass, the update of a layer. Between two pieces the caller does something else, such as serving;
without a server the next piece follows at once.

The loss of a mini-batch is the mean over its label tokens, however many packs it has. A job that was killed
goes on after its last saved state; what came later is computed again. Held-out examples have a loss before
the first step and after the last one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

from python_backends.engine.protocol import AdapterInTraining
from python_backends.finetuning import saved_states
from python_backends.finetuning.in_pieces import TrainerInPieces
from python_backends.finetuning.jobs import Job
from python_backends.finetuning.mini_batch import MiniBatch
from python_backends.finetuning.pack_memory import PackMemory
from python_backends.finetuning.packs import mini_batch, packed, steps_a_pass
from python_backends.finetuning.pieces import Kind, Piece
from python_backends.finetuning.prepared import Prepared, prepare
from python_backends.finetuning.publish import finish
from python_backends.nouns.training import Adam

CLIP = 1.0  # the largest global norm of the gradients
# from one save to the next: what a death costs at most, and far longer than to write one takes
SAVE_EVERY_S = 60.0
MOST_DEATHS = 3  # of processes that trained after the same step: then the job fails


@dataclass(frozen=True, slots=True)
class Progress:
    """After a step: for the picture of a job that is trained."""

    step: int
    num_steps: int
    loss: float
    tokens: int  # of this step, with a forward and a backward pass
    wasted_tokens: int = 0  # whose forward pass was computed since the last step, and will be again


@dataclass(frozen=True, slots=True)
class Files:
    """Of a job: where they are written, in order, and what was read of them."""

    writer: Executor
    adapters: Path | None = None  # where its adapter is published
    published: Callable[[], None] = lambda: None  # is called by `writer` when it is there
    read: Prepared | None = None  # None: the trainer reads them


class Trainer(TrainerInPieces):
    """`adapter` is the one that `job` asks for, with packs in `memory`. `watch` sees every step; `files`
    writes files.
    """

    def __init__(
        self,
        job: Job,
        adapter: AdapterInTraining,
        memory: PackMemory,
        files: Files,
        watch: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        super().__init__(job, adapter, memory)
        self._watch, self._files, self._written = watch, files, _done()
        read = files.read or prepare(job)
        self._examples, self._held_out, self._read = read.examples, read.held_out, read
        self._batch_size = int(job.fields["hyperparameters"]["batch_size"])
        self._seed = int(job.fields["seed"])
        self._learning_rate = float(job.options["learning_rate"])
        self.num_steps = int(job.options["steps"])
        self._states = job.directory / "checkpoints"
        self._trained_tokens = self._saved_step = 0
        self._began_s = self._saved_s = time.monotonic()
        self._began_step = 0

    def run(self) -> None:
        """Until the job has ended, and job.json says how."""
        self.begin()
        while self.piece.kind != Kind.END:
            self.do(self.tile_tokens)

    def begin(self) -> None:
        """JobError where there is never memory for an example."""
        for name, examples in (("example", self._examples), ("held-out example", self._held_out)):
            if examples is not None:
                longest = examples.longest
                self._memory.check_fits(packed([examples[longest]]), f"{name} {longest + 1}")
        self.piece = self._next_step() if self._resume() else Piece(Kind.END)

    # --- a step

    def _next_step(self) -> Piece:
        if self._step == self.num_steps and not self._must_measure:
            return self._await(self._written, self._finish)
        if self._job.is_cancel_asked:
            return self._end("cancelled", "cancelled")
        return Piece(Kind.BEGIN)

    def _begin_batch(self) -> Piece:
        if self._must_measure:
            held_out = list(self._held_out or ())
            self._batch = MiniBatch(self._adapter, self._memory, held_out, learns=False)
            return self._batch.piece
        chosen = mini_batch(len(self._examples), self._batch_size, self._seed, self._step)
        examples = [self._examples[int(index)] for index in chosen]
        self._batch = MiniBatch(self._adapter, self._memory, examples)
        return self._batch.piece

    def _begin_pack(self) -> Piece:
        if self._job.is_cancel_asked:
            return self._next_step()
        self._batch.begin_pack()
        return self._batch.piece

    def _again(self) -> Piece:
        return self._next_step()

    @property
    def _must_measure(self) -> bool:
        """The loss of the held-out examples is wanted now."""
        num_wanted = 1 + (self._step == self.num_steps)
        return self._held_out is not None and len(self._job.held_out_losses) < num_wanted

    def _measured(self) -> Piece:
        written = self._files.writer.submit(self._job.add_held_out_loss, self._batch.loss)
        return self._await(written, self._after_measured)

    def _after_measured(self, written: Future[None]) -> Piece:
        written.result()  # OSError if it could not be written
        return self._next_step()

    def _clip(self) -> Piece:
        self._adapter.keep_gradients()
        self._norm = self._adapter.clip(CLIP)
        if not math.isfinite(self._batch.loss + self._norm):
            return self._diverged(self._batch.loss, self._norm)
        return Piece(Kind.UPDATE)

    @property
    def _adam(self) -> Adam:
        return Adam(self._learning_rate)

    def _end_step(self) -> Piece:
        batch, rate = self._batch, self._learning_rate
        self._step += 1
        self._trained_tokens += batch.tokens
        self._job.add_loss(
            step=self._step, loss=batch.loss, tokens=batch.tokens, learning_rate=rate, grad_norm=self._norm
        )
        wasted, self._wasted_tokens = self._wasted_tokens, 0
        self._watch(Progress(self._step, self.num_steps, batch.loss, batch.tokens, wasted))
        if self._step == self.num_steps:  # at most one saved state waits in memory
            return self._await(self._written, self._after_step)
        return self._after_step(self._written)

    def _after_step(self, _written: Future[None]) -> Piece:
        return Piece(Kind.SAVE) if self._is_save_due() else self._next_step()

    # --- files

    def _save(self) -> Piece:
        self.save()
        return self._next_step()

    def save(self) -> None:
        """Saves the state after the last whole step, unless that is done. A state that can't be written is an
        event of the job; the next one is tried when it is due.
        """
        if self.is_updating or self._step == self._saved_step:
            return
        place = saved_states.Place(self._step, self._trained_tokens, self._ends_pass)
        self._written = self._files.writer.submit(self._write, place, self._adapter.state)
        self._saved_step, self._saved_s = self._step, time.monotonic()

    def _write(self, place: saved_states.Place, state: saved_states.State) -> None:
        """Called by the writer; nothing else changes job.json meanwhile."""
        try:
            saved_states.save(self._states, place, state)
            self._job.change(trained_tokens=place.trained_tokens, estimated_finish=self._estimate(place.step))
        except OSError as error:
            self._job.say(f"no saved state after step {place.step}: {error}", "warn")
            raise

    def _estimate(self, step: int) -> int:
        """The Unix time at which the job ends if it goes on as it did."""
        step_s = (time.monotonic() - self._began_s) / max(1, step - self._began_step)
        return int(time.time() + step_s * (self.num_steps - step))

    @property
    def _ends_pass(self) -> bool:
        return self._step % steps_a_pass(len(self._examples), self._batch_size) == 0

    def _is_save_due(self) -> bool:
        """At the end of a pass and of the job, and when the last saved state is old; once that is written."""
        is_old = time.monotonic() - self._saved_s >= SAVE_EVERY_S
        is_wanted = is_old or self._ends_pass or self._step == self.num_steps
        return is_wanted and self._written.done()

    # --- beginning and end

    def _resume(self) -> bool:
        """False if the job has failed now, because processes died of it."""
        found, start = self._read.saved, self._read.start
        message = "started"
        if found is not None:
            place, state = found
            self._adapter.resume(state, place.step)
            self._step, self._trained_tokens = place.step, place.trained_tokens
            self._saved_step = self._began_step = place.step
            message = f"goes on after step {place.step}"
        elif start is not None:
            self._adapter.resume(start, 0)
        self._read = Prepared(self._examples, None, None)  # the rest is not needed any more
        self._wasted_tokens = self._job.mend(self._step)
        if [event["message"] for event in self._job.events[-MOST_DEATHS:]] == [message] * MOST_DEATHS:
            text = f"{MOST_DEATHS} processes died after step {self._step}, before a later saved state"
            self._job.fail("server_error", text)
            return False
        self._job.say(message)
        self._job.change(status="running")
        return True

    def _finish(self, written: Future[None]) -> Piece:
        written.result()  # OSError if the last saved state could not be written
        return self._await(self._files.writer.submit(self._publish), self._succeed)

    def _publish(self) -> str:
        """Called by the writer. See `finish`."""
        adapter = finish(self._job, self._files.adapters)
        if adapter:
            self._files.published()
        return adapter

    def _succeed(self, published: Future[str]) -> Piece:
        fields = self._job.fields
        name = f"ft:{fields['model']}:{self._job.options['suffix']}:{self._job.id}"
        options = {**self._job.options, "adapter": published.result()}
        return self._end("succeeded", "succeeded", fine_tuned_model=name, gapless=options)

    def _diverged(self, loss: float, norm: float) -> Piece:
        what = f"loss of step {self._step + 1} is {loss}"
        if math.isfinite(loss):
            what = f"gradient of step {self._step + 1} has the norm {norm}"
        message = f"the {what}: try a smaller learning rate"
        error = {"code": "invalid_loss", "message": message, "param": "learning_rate"}
        return self._end("failed", message, error=error)

    def _end(self, status: str, message: str, **fields: object) -> Piece:
        """A saved state that failed does not matter any more."""
        return self._await(self._written, lambda _: self._ended(status, message, fields))

    def _ended(self, status: str, message: str, fields: dict[str, object]) -> Piece:
        self._job.end(status, message, trained_tokens=self._trained_tokens, **fields)
        return Piece(Kind.END)


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done
