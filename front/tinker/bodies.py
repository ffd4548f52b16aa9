"""The bodies of Tinker's SDK that are JSON, as many fields of them as are read, and their limits."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from front.errors import ProblemError, refused
from python_backends.engine.adapter_directory import NAME, NUMBER, wrong_name
from python_backends.finetuning.job_fields import LIMITS
from python_backends.nouns import asks

UNSUPPORTED = "unsupported_value"
STATE = re.compile(rf"tinker://(ftjob-[0-9a-f]+)/weights/({NAME.pattern})")
WEIGHTS = re.compile(rf"tinker://[^/]+/sampler_weights/({NAME.pattern}@{NUMBER.pattern})")


class SessionAsk(Struct):
    session_id: str


class Lora(Struct):
    rank: int
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True


class ModelAsk(Struct):
    session_id: str
    model_seq_id: int
    base_model: str
    lora_config: Lora
    optimizer_config: dict[str, Any] = field(default_factory=dict)


class OfModel(Struct):
    model_id: str


class Numbered(Struct):
    """What every ask of a model has, whatever else is in it."""

    model_id: str
    seq_id: int


class AdamAsk(Struct):
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class StepAsk(Struct):
    model_id: str
    seq_id: int
    adam_params: AdamAsk | None = None  # None: of another optimiser


class SaveAsk(Struct):
    model_id: str
    seq_id: int
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: str = "snapshot"
    ttl_seconds: int | None = None


class SaveStateAsk(Struct):
    model_id: str
    seq_id: int
    path: str
    ttl_seconds: int | None = None


class LoadStateAsk(Struct):
    model_id: str
    seq_id: int
    path: str
    optimizer: bool = False


class StateAsk(Struct):
    tinker_path: str


class SamplerAsk(Struct):
    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class FutureAsk(Struct):
    request_id: str


RANGES = {  # of Adam's parameters, both ends taken
    "learning_rate": (0.0, 1.0),
    "beta1": (0.0, 1 - 1e-9),
    "beta2": (0.0, 1 - 1e-9),
    "eps": (1e-30, 1.0),  # with 0 a weight without a gradient becomes 0 / 0
    "weight_decay": (0.0, 1e6),
    "grad_clip_norm": (0.0, 1e30),
}


def check_name(name: str) -> None:
    """Of what is saved. Raises ProblemError."""
    if wrong := wrong_name(name):
        raise refused("path", f" = {wrong}")


def check_stays(ttl_seconds: int | None) -> None:
    """Raises ProblemError."""
    if ttl_seconds is not None:
        raise refused("ttl_seconds", ": what is saved stays until it is removed", UNSUPPORTED)


def place_of(path: str) -> tuple[str, str]:
    """The job and the name of a saved state. Raises ProblemError."""
    found = STATE.fullmatch(path)
    if found is None:
        raise refused("path", f" = {path[:80]!r}: must be one that save_state has given")
    return found[1], found[2]


def adapter_of(path: str) -> str:
    """The adapter of saved weights. Raises ProblemError."""
    found = WEIGHTS.fullmatch(path)
    if found is None:
        said = f" = {path[:80]!r}: must be one that save_weights_for_sampler has given"
        is_state = "; what save_state has saved can't be sampled from" if "/weights/" in path else ""
        raise refused("model_path", said + is_state)
    return found[1]


def state_path(job: str, name: str) -> str:
    return f"tinker://{job}/weights/{name}"


def step_of(ask: StepAsk) -> asks.Step:
    """Raises ProblemError."""
    given = ask.adam_params
    if given is None:
        raise refused("optimizer_params", ": must be adam_params: this server has AdamW", UNSUPPORTED)
    for name, (least, most) in RANGES.items():
        if not least <= getattr(given, name) <= most:
            said = f" = {getattr(given, name):g}: must be between {least:g} and {most:g}"
            raise refused(f"adam_params.{name}", said)
    betas = (given.beta1, given.beta2)
    return asks.Step(given.learning_rate, betas, given.eps, given.weight_decay, given.grad_clip_norm)


def check_model(ask: ModelAsk, names: tuple[str, ...]) -> None:
    """Raises ProblemError."""
    if ask.base_model not in names:
        said = f"base_model = {ask.base_model[:64]!r}: must be {' or '.join(names)}"
        raise ProblemError(404, said, "model_not_found", "base_model")
    lora = ask.lora_config
    for name in ("rank", "seed"):
        (least, most), value = LIMITS[name], getattr(lora, name)
        if value is not None and not least <= value <= most:
            raise refused(f"lora_config.{name}", f" = {value}: must be between {least} and {most}")
    if not (lora.train_mlp or lora.train_attn):
        said = ": train_mlp or train_attn must be true: the head gets no adapter here"
        raise refused("lora_config", said, UNSUPPORTED)
    if ask.optimizer_config.get("type", "adamw") != "adamw":
        raise refused("optimizer_config.type", ": must be adamw", UNSUPPORTED)
