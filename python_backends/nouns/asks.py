"""What a caller asks of a job whose examples and steps come one after the other, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids

NONE = b""


@dataclass(frozen=True, slots=True, eq=False)
class Targeted:
    """An example whose labels are given."""

    ids: Ids  # [tokens]
    labels: Ids  # [tokens]
    weights: NDArray[np.float32]  # [tokens] of the labels; for importance sampling, advantages
    drawn_log_probs: NDArray[np.float32] | None  # [tokens] None: the loss is cross entropy


class Learn(msgspec.Struct, frozen=True, tag=True):
    """A forward pass over examples and, if it `learns`, a backward pass: its gradients are added to those
    since the last step. Examples lie one after the other.
    """

    lengths: list[int]  # [examples]
    ids: bytes  # [tokens] int32
    labels: bytes  # [tokens] int32
    weights: bytes  # [tokens] float32
    drawn_log_probs: bytes = NONE  # [tokens] float32
    learns: bool = True

    @property
    def examples(self) -> list[Targeted]:
        ends = np.cumsum(self.lengths)[:-1]
        ids, labels = (np.split(np.frombuffer(each, np.int32), ends) for each in (self.ids, self.labels))
        weights = np.split(np.frombuffer(self.weights, np.float32), ends)
        drawn = np.split(np.frombuffer(self.drawn_log_probs, np.float32), ends)
        is_drawn = self.drawn_log_probs != NONE
        return [
            Targeted(*each, drawn[index] if is_drawn else None)
            for index, each in enumerate(zip(ids, labels, weights, strict=True))
        ]


class Step(msgspec.Struct, frozen=True, tag=True):
    """A step of AdamW with the gradients since the last one."""

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_norm: float  # of the gradients; 0: they are not clipped


class Publish(msgspec.Struct, frozen=True, tag=True):
    """The adapter as it is now is put into the directory of adapters, as the newest version of its name."""

    name: str  # empty: the id of the job; such versions end with it


class SaveState(msgspec.Struct, frozen=True, tag=True):
    """Weights and moments as they are now are kept in the job's directory, for a model to go on from."""

    name: str


class LoadState(msgspec.Struct, frozen=True, tag=True):
    """The model goes on from what `job` has saved; gradients since the last step are dropped."""

    job: str
    name: str
    with_moments: bool  # else the optimiser starts from nothing


class Nothing(msgspec.Struct, frozen=True, tag=True):
    """An ask that was refused before: the next one follows."""


Ask = Learn | Step | Publish | SaveState | LoadState | Nothing


class Learned(msgspec.Struct, frozen=True, tag=True):
    lengths: list[int]  # [examples]
    loss: float  # the sum over labels
    log_probs: bytes  # [tokens] float32, of the labels


class Stepped(msgspec.Struct, frozen=True, tag=True):
    norm: float  # of the gradients, before they were clipped


class Published(msgspec.Struct, frozen=True, tag=True):
    adapter: str  # name@version


class Saved(msgspec.Struct, frozen=True, tag=True):
    name: str


class Loaded(msgspec.Struct, frozen=True, tag=True):
    pass


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The ask has changed nothing."""

    error: str


Answer = Learned | Stepped | Published | Saved | Loaded | Refused | Nothing


def written(what: Ask | Answer) -> bytes:
    data: bytes = msgspec.msgpack.encode(what)
    return data


def read_ask(data: bytes) -> Ask:
    """Raises ValueError."""
    ask: Ask = msgspec.msgpack.decode(data, type=Ask)
    return ask


def read_answer(data: bytes) -> Answer:
    """Raises ValueError."""
    answer: Answer = msgspec.msgpack.decode(data, type=Answer)
    return answer
