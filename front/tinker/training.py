"""A model in training: a job that is led by asks, and what is known of it here."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from front.errors import ProblemError, refused
from front.tinker.bodies import Lora, SaveAsk
from python_backends.checkpoint.model_facts import ModelFacts, read_model_facts
from python_backends.checkpoint.model_names import name_of
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.tensor_names import attention_shapes
from python_backends.finetuning import ask_files
from python_backends.finetuning.jobs import ENDED, Job, JobError, create, jobs_directory
from python_backends.finetuning.watchers import refusals
from python_backends.nouns import asks
from python_backends.settings import Settings

ALPHA = 32.0  # Tinker's
MOST_WAITING = 64  # asks of a model
GAP_S = 60.0  # an ask waits for one with a smaller number that has not come


class FailedError(Exception):
    """What was asked for can't be had. `by_caller`: another ask could be."""

    def __init__(self, message: str, by_caller: bool) -> None:
        super().__init__(message)
        self.by_caller = by_caller


@dataclass(slots=True)
class Trained:
    id: str
    job: Job
    rank: int
    saves: dict[int, SaveAsk] = field(default_factory=dict)  # by number of the ask

    def ask(self, number: int, ask: asks.Ask) -> None:
        """Asks are answered in the order of their numbers, from 1. One that is there already stays. Raises
        ProblemError and OSError.
        """
        if not 1 <= number < 10**9:
            raise refused("seq_id", f" = {number}: must be between 1 and {10**9 - 1}")
        before = number - MOST_WAITING
        if before > 0 and not ask_files.answer_path(self.job.directory, before).exists():
            said = f"{MOST_WAITING} requests of this model wait already; try again later"
            raise ProblemError(429, said, "too_many_requests", kind="rate_limit_error")
        ask_files.write_ask(self.job.directory, number, ask)

    def note_save(self, ask: SaveAsk) -> None:
        """What it asks for is told with its answer."""
        self.saves[ask.seq_id] = ask
        if len(self.saves) > ask_files.NUM_KEPT:
            del self.saves[next(iter(self.saves))]

    def answer(self, number: int) -> asks.Answer | None:
        """None: there is none yet. Raises OSError and ValueError."""
        return ask_files.read_answer(self.job.directory, number)

    def check(self, number: int) -> None:
        """Raises FailedError if no answer to the ask `number` comes, and OSError."""
        try:
            job = Job(self.job.directory)
        except JobError as error:
            raise FailedError(str(error), False) from None
        if job.status in ENDED:
            why = job.fields["error"]
            raise FailedError(why["message"] if why else f"its training has ended ({job.status})", False)
        if ask_files.waited_s(job.directory, number) > GAP_S:
            missing = ask_files.missing_before(job.directory, number)
            if missing:
                said = f"seq_id = {number}: waits for {missing}, which has not come: begin a new model"
                raise FailedError(said, True)


def new_job(settings: Settings, lora: Lora) -> Job:
    """Raises ProblemError, CheckpointError and OSError."""
    directory = jobs_directory(settings)
    found = refusals(directory)
    if found and "" not in found:
        raise ProblemError(400, found[0].splitlines()[0], "training_is_off")
    facts = read_model_facts(open_source(settings.model_directory))
    if facts.experts:
        raise ProblemError(400, "base_model: mixtures of experts are not trained", "unsupported_value")
    options = {
        "suffix": "tinker",
        "asked": True,
        "rank": lora.rank,
        "alpha": ALPHA,
        "targets": _targets(facts, lora),
        "learning_rate": 0.0,  # each step has its own
        "steps": 1,
    }
    fields = {
        "model": name_of(settings.model_directory),
        "training_file": None,
        "hyperparameters": {"n_epochs": 1, "batch_size": 1},
        "seed": secrets.randbelow(2**31) if lora.seed is None else lora.seed,
        "gapless": options,
    }
    return create(directory, None, fields)


def shape_of(settings: Settings, job_id: str) -> dict[str, Any]:
    """What a model must be to go on from what the job has saved. Raises ProblemError and CheckpointError."""
    try:
        shape = Job(jobs_directory(settings) / job_id).shape
    except JobError:
        raise ProblemError(404, f"{job_id}: there is no such job", "not_found") from None
    attention = _attention(read_model_facts(open_source(settings.model_directory)))
    trained = {name in attention for name in shape.modules}
    return {"lora_rank": shape.rank, "train_attn": True in trained, "train_mlp": False in trained}


def _attention(facts: ModelFacts) -> set[str]:
    return {path.rpartition(".")[2] for path in attention_shapes(facts)}


def _targets(facts: ModelFacts, lora: Lora) -> list[str]:
    attention = _attention(facts)
    return [name for name in facts.module_names if (lora.train_attn if name in attention else lora.train_mlp)]
