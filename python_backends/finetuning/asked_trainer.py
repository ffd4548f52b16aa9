"""Trains what a caller asks for: mini-batches and optimiser steps come one after the other, as files in the
job's directory (`asks`). To who calls it, it is as `Trainer`: pieces, of which WAIT is that for the next ask.

Its weights live as long as its instance: a job whose instance has ended fails, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from python_backends.engine.protocol import AdapterInTraining
from python_backends.finetuning.asked_files import AskedFiles
from python_backends.finetuning.in_pieces import TrainerInPieces
from python_backends.finetuning.jobs import Job, JobError
from python_backends.finetuning.mini_batch import MiniBatch
from python_backends.finetuning.pack_memory import PackMemory
from python_backends.finetuning.pieces import Kind, Piece
from python_backends.finetuning.saved_states import Place, State
from python_backends.finetuning.trainer import Files, Progress
from python_backends.nouns import asks
from python_backends.nouns.training import Adam

T = TypeVar("T")
LOST = "the instance that trained it has ended, and its weights with it: begin a new one"


class AskedTrainer(TrainerInPieces):
    def __init__(
        self,
        job: Job,
        adapter: AdapterInTraining,
        memory: PackMemory,
        files: Files,
        watch: Callable[[Progress], None],
    ) -> None:
        """`watch` sees every step."""
        super().__init__(job, adapter, memory)
        self._watch, self._files = watch, AskedFiles(job, files)
        self._ask: asks.Ask = asks.Nothing()
        self._has_gradients = False
        self._all_tokens = 0  # of all steps
        self._num_moments = 0  # steps that the optimiser's moments know
        self._tokens = 0  # that were learned since the last step
        self._loss = 0.0  # of these, a sum
        self._then = self._next_ask

    def begin(self) -> None:
        if self._job.status == "running":
            self._job.fail("server_error", LOST)
            self._files.forget()
            self.piece = Piece(Kind.END)
            return
        self._job.say("started")
        self._job.change(status="running")

    def save(self) -> None:
        """Nothing: what outlives the instance was published."""

    # --- asks

    def _next_ask(self) -> Piece:
        if self._files.is_over:
            return self._end()
        self._then = self._next_ask
        return self._when(self._files.read(), self._begin_ask) if self._files.has_ask else Piece(Kind.WAIT)

    def _begin_ask(self, ask: asks.Ask) -> Piece:
        self._ask = ask
        match ask:
            case asks.Learn():
                return Piece(Kind.BEGIN)
            case asks.Step() if self._has_gradients:
                return Piece(Kind.CLIP)
            case asks.Step():
                return self._answered(asks.Refused("there are no gradients: forward_backward goes before"))
            case asks.Publish() | asks.SaveState():
                return Piece(Kind.SAVE)
            case asks.LoadState():
                return self._when(self._files.read_state(ask), self._load)
            case asks.Nothing():
                return self._answered(ask)

    def _save(self) -> Piece:
        if isinstance(self._ask, asks.Publish):
            return self._when(self._files.publish(self._ask.name, self._adapter.state), self._answered)
        assert isinstance(self._ask, asks.SaveState)
        place = Place(self._num_moments, self._all_tokens, ends_pass=False)
        return self._when(self._files.save_state(self._ask.name, place, self._adapter.state), self._answered)

    def _load(self, found: tuple[Place, State] | asks.Refused) -> Piece:
        assert isinstance(self._ask, asks.LoadState)
        if isinstance(found, asks.Refused):
            return self._answered(found)
        place, state = found
        num_moments = place.step if self._ask.with_moments else 0
        try:
            self._adapter.resume(state, num_moments)
        except ValueError as error:
            return self._answered(asks.Refused(f"the state is another adapter's: {error}"))
        self._num_moments = num_moments
        if self._has_gradients:  # of other weights
            self._adapter.clip(math.inf)
            self._drop()
        return self._answered(asks.Loaded())

    def _answered(self, answer: asks.Answer) -> Piece:
        return self._when(self._files.answer(answer), lambda _: self._next_ask())

    def _when(self, files: Future[T], then: Callable[[T], Piece]) -> Piece:
        """What comes when they are read or written. OSError if they can't be."""
        return self._await(files, lambda done: then(done.result()))

    def _end(self) -> Piece:
        self._job.end("cancelled", "its caller has left", trained_tokens=self._all_tokens)
        self._files.forget()
        return Piece(Kind.END)

    # --- mini-batches

    def _begin_batch(self) -> Piece:
        assert isinstance(self._ask, asks.Learn)
        examples, learns = self._ask.examples, self._ask.learns
        self._batch = MiniBatch(self._adapter, self._memory, examples, learns, is_sum=True)
        return self._batch.piece

    def _begin_pack(self) -> Piece:
        if self._files.is_over:
            return self._end()
        try:
            self._batch.begin_pack()
        except JobError as error:  # there is never enough
            return self._answered(asks.Refused(str(error)))
        return self._batch.piece

    def _again(self) -> Piece:
        return Piece(Kind.BEGIN)

    def _measured(self) -> Piece:
        assert isinstance(self._ask, asks.Learn)
        batch, lengths = self._batch, self._ask.lengths
        if self._ask.learns:
            self._loss += batch.loss
            self._tokens += batch.tokens
        return self._answered(asks.Learned(lengths, batch.loss, batch.log_probs.tobytes()))

    # --- steps

    def _clip(self) -> Piece:
        """After a mini-batch, its gradients are kept; they are clipped when a step is asked for."""
        if not isinstance(self._ask, asks.Step):
            self._adapter.keep_gradients()
            self._has_gradients = True
            return self._measured()
        self._has_gradients = False
        self._norm = self._adapter.clip(self._ask.max_norm or math.inf)
        if not math.isfinite(self._norm):
            said = f"the gradients have the norm {self._norm}, and were dropped: try a smaller learning rate"
            self._drop()
            return self._answered(asks.Refused(said))
        return Piece(Kind.UPDATE)

    def _drop(self) -> None:
        """The gradients since the last step."""
        self._has_gradients = False
        self._tokens, self._loss = 0, 0.0

    @property
    def _adam(self) -> Adam:
        assert isinstance(self._ask, asks.Step)
        ask = self._ask
        return Adam(ask.learning_rate, ask.betas, ask.eps, ask.weight_decay)

    def _end_step(self) -> Piece:
        rate = self._adam.learning_rate
        self._step += 1
        self._num_moments += 1
        tokens, loss = self._tokens, self._loss / self._tokens
        self._tokens, self._loss = 0, 0.0
        self._all_tokens += tokens
        wasted, self._wasted_tokens = self._wasted_tokens, 0
        self._job.add_loss(
            step=self._step, loss=loss, tokens=tokens, learning_rate=rate, grad_norm=self._norm
        )
        self._watch(Progress(self._step, self._step, loss, tokens, wasted))
        return self._answered(asks.Stepped(self._norm))
