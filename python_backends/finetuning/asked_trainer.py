"""Trains what a caller asks for: mini-batches and optimiser steps come one after the other, as files in the
job's directory (`asks`). To who calls it, it is as `Trainer`: pieces, of which WAIT is that for the next ask.

Its weights live as long as its instance: a job whose instance has ended fails, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from python_backends.engine.protocol import AdapterInTraining
from python_backends.finetuning.asked_files import AskedFiles
from python_backends.finetuning.jobs import Job, JobError
from python_backends.finetuning.mini_batch import MiniBatch
from python_backends.finetuning.pack_memory import PackMemory, RevokedError
from python_backends.finetuning.pieces import Kind, Piece
from python_backends.finetuning.trainer import Files, Progress
from python_backends.nouns import asks
from python_backends.nouns.training import Adam

LOST = "the instance that trained it has ended, and its weights with it: begin a new one"


class AskedTrainer:
    def __init__(
        self,
        job: Job,
        adapter: AdapterInTraining,
        memory: PackMemory,
        files: Files,
        watch: Callable[[Progress], None],
    ) -> None:
        """`watch` sees every step."""
        self._job, self._adapter, self._memory, self._watch = job, adapter, memory, watch
        self.tile_tokens, self.wait = adapter.tile_tokens, adapter.wait
        self._files = AskedFiles(job, files)
        self._ask: asks.Ask = asks.Nothing()
        self._batch: MiniBatch  # since the first BEGIN
        self._has_gradients = False
        self._step = self._all_tokens = 0
        self._tokens = self._wasted_tokens = 0  # since the last step
        self._norm = self._loss = 0.0  # of the gradients; of the latest mini-batch, a token
        self._layer = 0  # whose weights change next
        self.piece = Piece(Kind.WAIT)
        self._then: Callable[[], Piece] = self._next_ask  # what comes when WAIT is over

    def begin(self) -> None:
        if self._job.status == "running":
            self._job.fail("server_error", LOST)
            self._files.forget()
            self.piece = Piece(Kind.END)
            return
        self._job.say("started")
        self._job.change(status="running")

    def do(self, tokens: int) -> None:
        """Does `piece`, with at most `tokens` tokens if it has a pack."""
        self.piece = self._after(self.piece.kind, tokens)

    @property
    def is_updating(self) -> bool:
        """The weights are between two steps."""
        return self._layer > 0

    def save(self) -> None:
        """Nothing: what outlives the instance was published."""

    def _after(self, kind: Kind, tokens: int) -> Piece:
        """Does a piece of that kind. Returns the next one."""
        match kind:
            case Kind.WAIT:
                return self._then()
            case Kind.BEGIN:
                return self._begin_batch()
            case Kind.PACK | Kind.MEMORY:
                return self._begin_pack()
            case Kind.MEASURED:
                return self._learned()
            case Kind.CLIP:
                return self._clip()
            case Kind.UPDATE:
                return self._update()
            case Kind.SAVE:
                return self._publish()
        return self._compute(tokens)

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
            case asks.Publish():
                return Piece(Kind.SAVE)
            case asks.Nothing():
                return self._answered(ask)

    def _publish(self) -> Piece:
        assert isinstance(self._ask, asks.Publish)
        return self._when(self._files.publish(self._ask.name, self._adapter.state), self._answered)

    def _answered(self, answer: asks.Answer) -> Piece:
        return self._when(self._files.answer(answer), lambda _: self._next_ask())

    def _when(self, files: Future[Any], then: Callable[[Any], Piece]) -> Piece:
        """What comes when they are read or written. OSError if they can't be."""
        self._then = lambda: then(files.result()) if files.done() else Piece(Kind.WAIT)
        return self._then()

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
        """To wait for its memory may take long: the caller may leave meanwhile."""
        if self._files.is_over:
            return self._end()
        try:
            self._batch.begin_pack()
        except JobError as error:  # there is never enough
            return self._answered(asks.Refused(str(error)))
        return self._batch.piece

    def _compute(self, tokens: int) -> Piece:
        try:
            self._batch.do(tokens)
        except RevokedError:
            self._wasted_tokens += self._batch.begun_tokens
            return Piece(Kind.BEGIN)
        return self._batch.piece

    def _learned(self) -> Piece:
        assert isinstance(self._ask, asks.Learn)
        batch, lengths = self._batch, self._ask.lengths
        self._loss = batch.loss / batch.tokens
        self._tokens += batch.tokens
        self._all_tokens += batch.tokens
        return self._answered(asks.Learned(lengths, batch.loss, batch.log_probs.tobytes()))

    # --- steps

    def _clip(self) -> Piece:
        """After a mini-batch, its gradients are kept; they are clipped when a step is asked for."""
        if not isinstance(self._ask, asks.Step):
            self._adapter.keep_gradients()
            self._has_gradients = True
            return self._learned()
        self._has_gradients = False
        self._norm = self._adapter.clip(self._ask.max_norm or math.inf)
        if not math.isfinite(self._norm):
            said = f"the gradients have the norm {self._norm}, and were dropped: try a smaller learning rate"
            return self._answered(asks.Refused(said))
        return Piece(Kind.UPDATE)

    def _update(self) -> Piece:
        """Of one layer's weights."""
        assert isinstance(self._ask, asks.Step)
        ask = self._ask
        adam = Adam(ask.learning_rate, ask.betas, ask.eps, ask.weight_decay)
        self._adapter.update(self._layer, adam)
        self._layer = (self._layer + 1) % len(self._adapter.facts)
        return Piece(Kind.UPDATE) if self.is_updating else self._end_step(adam.learning_rate)

    def _end_step(self, rate: float) -> Piece:
        self._step += 1
        (tokens, self._tokens), (wasted, self._wasted_tokens) = (self._tokens, 0), (self._wasted_tokens, 0)
        self._job.add_loss(
            step=self._step, loss=self._loss, tokens=tokens, learning_rate=rate, grad_norm=self._norm
        )
        self._watch(Progress(self._step, self._step, self._loss, tokens, wasted))
        return self._answered(asks.Stepped(self._norm))
