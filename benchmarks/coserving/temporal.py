"""Training that takes turns with serving, a baseline of co-serving: after a number of steps of requests, one
whole sequence is trained, however long that takes. Where the server is idle, one sequence follows the other.

It has the place of `instance/training.py` in the loop, and uses the same trainer and the same memory.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from python_backends.engine.protocol import Trains
from python_backends.finetuning.jobs import Job
from python_backends.finetuning.pack_memory import PackMemory, Pool
from python_backends.finetuning.pieces import Kind
from python_backends.finetuning.trainer import Files, Trainer
from python_backends.instance.spare_time import SpareWork
from python_backends.nouns.step import StepPlan

WHOLE = (Kind.FORWARD, Kind.LOSS, Kind.BACKWARD)


class Temporal(SpareWork):
    """Trains one sequence of `job` after every `steps` steps of requests."""

    has_work = True

    def __init__(self, engine: Trains, pool: Pool, job: Job, steps: int) -> None:
        adapter = engine.start_training()(job.shape, int(job.fields["seed"]))
        memory = PackMemory(adapter, pool, 1 << 4)  # longer examples are packs by themselves
        files = Files(ThreadPoolExecutor(1))
        self._trainer = Trainer(job, adapter, memory, files)
        self._trainer.begin()
        self._every, self._num_steps = steps, 0

    def work(self, slack_s: float, plan: StepPlan | None) -> bool:
        """Whether it has trained; `slack_s` does not matter."""
        self._num_steps += plan is not None
        if plan is not None and self._num_steps % self._every:
            return False
        self._sequence()
        return True

    def _sequence(self) -> None:
        """The next pack, with what stands before it: the end of a mini-batch."""
        trainer = self._trainer
        while trainer.piece.kind not in WHOLE:
            trainer.do(trainer.tile_tokens)
        pack = trainer.piece.pack
        while trainer.piece.pack is pack:
            trainer.do(trainer.tile_tokens)
