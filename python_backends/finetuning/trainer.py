"""Trains a job in a process of its own, without a server: mini-batch by mini-batch, in windows and tiles as
large as a pack.

The loss of a mini-batch is the mean over its label tokens, however many packs it has. A job that was killed
goes on after its last checkpoint; what came later is computed again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from python_backends.finetuning import checkpoints
from python_backends.finetuning.cursor import PackCursor
from python_backends.finetuning.jobs import Job
from python_backends.finetuning.packs import mini_batch, packs, steps_a_pass
from python_backends.finetuning.pruning import first_layer, plans
from python_backends.nouns.training import Keep, LayerFacts, LayerPlan, Pack, Tile
from python_backends.settings import FinetuningSettings

CLIP = 1.0  # the largest global norm of the gradients
NUM_TILE_TOKENS = 512


class Session(Protocol):
    """What the engine trains (`engine/torch/training/session.py`)."""

    @property
    def facts(self) -> tuple[LayerFacts, ...]: ...
    @property
    def targets(self) -> dict[int, frozenset[str]]: ...
    @property
    def state(self) -> dict[str, NDArray[Any]]: ...
    def install(self, plans: tuple[LayerPlan, ...]) -> None: ...
    def begin(self, pack: Pack, num_labels: int) -> None: ...
    def window(self, first: int, last: int) -> float: ...
    def tile(self, tile: Tile) -> None: ...
    def update(self, learning_rate: float, max_norm: float) -> float: ...
    def resume(self, state: dict[str, NDArray[Any]], num_steps: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """After a step: for the picture of a job that is trained."""

    step: int
    num_steps: int
    loss: float
    tokens: int  # of this step, with a forward and a backward pass


class Trainer:
    """`session` trains what `job` asks for. `watch` sees every step."""

    def __init__(
        self,
        job: Job,
        session: Session,
        settings: FinetuningSettings,
        watch: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._job, self._session, self._settings, self._watch = job, session, settings, watch
        self._examples = job.examples
        self._batch_size = int(job.fields["hyperparameters"]["batch_size"])
        self._seed = int(job.fields["seed"])
        self._learning_rate = float(job.options["learning_rate"])
        self.num_steps = int(job.options["steps"])
        self._checkpoints = job.directory / "checkpoints"
        self._plans = plans(session.facts, session.targets, Keep(settings.keep))
        self._step = self._trained_tokens = 0
        self._saved_s = time.monotonic()

    def run(self) -> None:
        """Until the job has ended, and job.json says how."""
        self._resume()
        self._job.change(status="running")
        while self._step < self.num_steps:
            if self._job.is_cancel_asked:
                self._end("cancelled", "cancelled")
                return
            loss = self._train_step()
            if not math.isfinite(loss):
                message = f"the loss of step {self._step} is {loss}: try a smaller learning rate"
                error = {"code": "invalid_loss", "message": message, "param": "learning_rate"}
                self._end("failed", message, error=error)
                return
            self._save(if_due=self._step < self.num_steps)
        fields = self._job.fields
        name = f"ft:{fields['model']}:{self._job.options['suffix']}:{self._job.id}"
        self._end("succeeded", "succeeded", fine_tuned_model=name)

    def _resume(self) -> None:
        found = checkpoints.last(self._checkpoints)
        if found is None:
            self._job.mend(0)
            self._job.say("started")
            return
        place, state = found
        self._session.resume(state, place.step)
        self._step, self._trained_tokens = place.step, place.trained_tokens
        self._job.mend(place.step)
        self._job.say(f"goes on after step {place.step}")

    def _train_step(self) -> float:
        """One mini-batch; its weights change unless the loss is not finite."""
        chosen = [self._examples[i] for i in self._chosen()]
        made = list(packs(chosen, self._settings.pack_tokens))
        num_labels = sum(pack.num_labels for pack in made)
        self._session.install(self._plans)
        loss = sum(self._train_pack(pack, num_labels) for pack in made)
        self._step += 1
        if math.isfinite(loss):
            norm = self._session.update(self._learning_rate, CLIP)
            tokens = sum(len(pack.tokens) for pack in made)
            self._trained_tokens += tokens
            self._job.add_loss(
                step=self._step,
                loss=loss,
                tokens=tokens,
                learning_rate=self._learning_rate,
                grad_norm=norm,
            )
            self._watch(Progress(self._step, self.num_steps, loss, tokens))
        return loss

    def _chosen(self) -> list[int]:
        chosen = mini_batch(len(self._examples), self._batch_size, self._seed, self._step)
        return [int(index) for index in chosen]

    def _train_pack(self, pack: Pack, num_labels: int) -> float:
        self._session.begin(pack, num_labels)
        first = first_layer(self._session.targets)
        cursor = PackCursor(len(pack.tokens), len(self._plans), first)
        loss = 0.0
        while not cursor.is_computed:
            loss += self._session.window(*cursor.take_window(NUM_TILE_TOKENS))
        while not cursor.is_done:
            self._session.tile(cursor.take_tile(NUM_TILE_TOKENS))
        return loss

    def _save(self, if_due: bool) -> None:
        """At the end of a pass, and when the last checkpoint is old; always unless `if_due`."""
        ends_pass = self._step % steps_a_pass(len(self._examples), self._batch_size) == 0
        is_old = time.monotonic() - self._saved_s >= self._settings.checkpoint_every_s
        if if_due and not (ends_pass or is_old):
            return
        place = checkpoints.Place(self._step, self._trained_tokens, ends_pass)
        checkpoints.save(self._checkpoints, place, self._session.state)
        self._saved_s = time.monotonic()
        self._job.change(trained_tokens=self._trained_tokens)

    def _end(self, status: str, message: str, **fields: Any) -> None:
        at = int(time.time())
        self._job.change(status=status, finished_at=at, trained_tokens=self._trained_tokens, **fields)
        self._job.say(message, "error" if status == "failed" else "info")
