"""The fields of a new job, and the words of the command line that they become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from front.errors import refused
from python_backends.engine.adapter_directory import wrong_name
from python_backends.finetuning.job_fields import LEARNING_RATE

Auto = Literal["auto"]


class Hyperparameters(Struct, kw_only=True):
    """The first three are OpenAI's. None, or auto: what the command line takes where nothing is said."""

    n_epochs: int | Auto | None = None
    batch_size: int | Auto | None = None
    learning_rate_multiplier: float | Auto | None = None
    learning_rate: float | None = None
    steps: int | None = None
    rank: int | None = None
    alpha: float | None = None
    targets: str | None = None


class Supervised(Struct):
    hyperparameters: Hyperparameters | None = None


class Method(Struct):
    type: str
    supervised: Supervised | None = None


class JobAsk(Struct, kw_only=True):
    model: str
    training_file: str
    validation_file: str | None = None
    suffix: str | None = None
    seed: int | None = None
    hyperparameters: Hyperparameters | None = None
    method: Method | None = None
    integrations: list[Any] | None = None


WORDS = {  # of the command line
    "n_epochs": "epochs",
    "batch_size": "batch-size",
    "learning_rate": "learning-rate",
    "steps": "steps",
    "rank": "rank",
    "alpha": "alpha",
    "targets": "targets",
}
FIELDS = {  # what the command line names in an error
    **{word: name for name, word in WORDS.items()},
    "name": "suffix",
    "seed": "seed",
    "from": "model",
}


def words_of(ask: JobAsk, adapter: str) -> list[str]:
    """The options of `submit`. `adapter`: from which the job goes on; empty: the model itself. Raises
    ProblemError.
    """
    _check(ask)
    words = [f"--{WORDS[name]}={value}" for name, value in _hyperparameters(ask) if value != "auto"]
    if ask.suffix is not None:
        words.append(f"--name={ask.suffix}")
    if ask.seed is not None:
        words.append(f"--seed={ask.seed}")
    return [*words, f"--from={adapter}"] if adapter else words


def _check(ask: JobAsk) -> None:
    if ask.suffix is not None and (wrong := wrong_name(ask.suffix)):
        raise refused("suffix", f" = {wrong}")
    if ask.method is not None and ask.method.type != "supervised":
        raise refused("method.type", f" = {ask.method.type[:40]!r}: must be supervised", "unsupported_value")
    if ask.validation_file is not None:
        raise refused("validation_file", ": jobs have none here; leave it out", "unsupported_value")
    if ask.integrations:
        raise refused("integrations", ": this server has none; leave it out", "unsupported_value")


def _hyperparameters(ask: JobAsk) -> Iterator[tuple[str, Any]]:
    supervised = ask.method.supervised if ask.method is not None else None
    given = (supervised.hyperparameters if supervised is not None else None) or ask.hyperparameters
    if given is None:
        return
    for name in WORDS:
        if (value := getattr(given, name)) is not None:
            yield name, value
    multiplier = given.learning_rate_multiplier
    if multiplier is not None and multiplier != "auto":
        if given.learning_rate is not None:
            raise refused("learning_rate_multiplier", ": leave it out, or learning_rate")
        yield "learning_rate", multiplier * LEARNING_RATE
