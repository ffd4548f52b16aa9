"""What processes say to each other, and how it is written: msgpack, numpy arrays as raw bytes, one frame a
message. Never pickle.

A wire reads only the nouns that belong on it, and each field only as what it is declared to be.

Between scheduler model and instance every frame is (sender incarnation, receiver incarnation, number,
messages): what an earlier life said or was told is dropped, and a frame that is lost shows. The same writing
carries a `Request` from the tokenizer to the scheduler model and a `TokenWindow` to the detokenizer.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.load import Load
from python_backends.nouns.moves import (
    AbortMove,
    Ack,
    Adopted,
    Blocks,
    Last,
    MoveEnded,
    MoveOut,
    Nak,
    Refused,
    Reserve,
    Reserved,
    Resume,
    Suspended,
)
from python_backends.nouns.request import (
    Finish,
    Floats,
    Ids,
    LengthPrediction,
    ModelLimits,
    Noun,
    Request,
)
from python_backends.nouns.step import Evicted, HiddenStates, PromptLogProbs, Started, Tokens

Array = NDArray[Any]
Reader = Callable[[bytes | memoryview], Any]

NOBODY = ""  # the receiver of a first hello
ANY_EPOCH = -1

# an array's extension type is its place here
_DTYPES = tuple(np.dtype(name) for name in ("<i4", "<i8", "|u1", "<f4"))
_TAGS = {dtype: tag for tag, dtype in enumerate(_DTYPES)}


class BadMessageError(ValueError):
    """A frame that none of our processes wrote."""


class Hello(Noun, frozen=True):
    """Opens a connection, and answers a frame from or for an unknown
    incarnation. An instance says what it can take.
    """

    limits: ModelLimits | None = None
    host: str = ""  # of an instance: the name of its host
    blocks_at: str = ""  # of an instance: ZeroMQ endpoint that takes KV blocks; empty: it takes none
    kv_format: str = ""  # of an instance: how KV blocks are written; only equal ones are exchanged
    pid: int = 0  # of an instance, on its host


class Submit(Noun, frozen=True, eq=False):
    """A request that is to go on after the output tokens `delivered`,
    as life `request_epoch` of its stream.
    """

    request: Request
    delivered: Ids  # [n]
    request_epoch: int
    number: int = 0  # of this message, counted by the scheduler model for each instance
    age_s: float = 0.0  # since it was accepted, if an instance had it before: its place among the requests


class Predicted(Noun, frozen=True, eq=False):
    """How long the answer to a request that was submitted before is
    expected to be; it may come late, or never.
    """

    request_id: int
    prediction: LengthPrediction


class LengthAnswer(Noun, frozen=True, eq=False):
    """What is expected of a request before its prompt is computed."""

    prediction: LengthPrediction | None = None  # None: nothing is known yet
    version: int = 0  # of the regression or the forest that said so; 0: recent history did
    features: Floats | None = None  # [NUM_FEATURES] if there was time to make them
    encoder: str = ""  # that made them


class AtStage(Noun, frozen=True, eq=False):
    """The hidden state that a request had at a stage (`nouns.stages`), and what was predicted from it."""

    stage: int
    state: Floats  # [hidden] at the prompt's end; later, the mean of those read while the answer was written
    layer: int  # after so many layers
    prediction: LengthPrediction | None = None  # None: nothing was learned yet
    version: int = 0  # of the model that said so


class AnswerRecord(Noun, frozen=True, eq=False):
    """One answer that has ended, for the request log."""

    at_s: float  # Unix time
    instruction: str
    num_prompt_tokens: int
    num_input_tokens: int
    num_output_tokens: int
    finish: Finish
    predicted: LengthAnswer
    user_input: str = ""  # only where prompts are kept
    stages: tuple[AtStage, ...] = ()  # that it has reached; none where the engine gives no states
    token_buckets: Ids | None = None  # of its prompt (`prediction.token_counts`)
    adapter: str = ""  # as in its Subject


class Cancel(Noun, frozen=True):
    """The answer to this request is not wanted any more."""

    request_id: int
    request_epoch: int = ANY_EPOCH  # only this life of it


class Failed(Noun, frozen=True):
    """An instance can't take this life of a request, or can't go on with it."""

    request_id: int
    error: str
    request_epoch: int


ToInstance = Hello | Submit | Predicted | Cancel | Reserve | MoveOut | AbortMove | Resume
FromInstance = (
    Hello
    | Started
    | Evicted
    | HiddenStates
    | PromptLogProbs
    | Tokens
    | Load
    | Failed
    | Reserved
    | Refused
    | Suspended
    | Adopted
    | MoveEnded
)
BetweenInstances = Blocks | Last | Ack | Nak


def new_incarnation() -> str:
    """Names one life of a process."""
    return secrets.token_hex(8)


def pack(message: Noun | tuple[Any, ...]) -> bytes:
    """A noun, or a tuple of nouns and plain values, as bytes."""
    return _ENCODER.encode(message)


def reader(kind: Any) -> Reader:
    """What reads frames in which `kind` was packed: a noun, several joined by |, or tuple[...] of them;
    arrays are read-only views.

    It raises BadMessageError for anything else.
    """
    decoder = msgspec.msgpack.Decoder(kind, dec_hook=_checked, ext_hook=_array)

    def read(frame: bytes | memoryview) -> Any:
        try:
            return decoder.decode(frame)
        except (msgspec.DecodeError, ValueError, IndexError) as error:  # the latter two from arrays
            raise BadMessageError(f"not a message: {error}") from error

    return read


def frame_reader(kind: Any, unknown: Callable[[BadMessageError], None]) -> Reader:
    """What reads frames of (incarnation, incarnation, number, messages of `kind`). Unknown messages, as those
    of another version of the code, are left out, and `unknown` is told.
    """
    whole, one = reader(tuple[str, str, int, tuple[kind, ...]]), reader(kind)
    in_parts = reader(tuple[str, str, int, tuple[msgspec.Raw, ...]])

    def known(messages: tuple[msgspec.Raw, ...]) -> Iterator[Any]:
        for message in messages:
            try:
                yield one(message)
            except BadMessageError as error:
                unknown(error)

    def read(frame: bytes | memoryview) -> Any:
        try:
            return whole(frame)
        except BadMessageError:
            *head, messages = in_parts(frame)
            return (*head, tuple(known(messages)))

    return read


def _written(value: Any) -> Any:
    """For types that msgspec does not have: arrays, and numpy's numbers."""
    if isinstance(value, np.generic):
        return value.item()
    return msgspec.msgpack.Ext(_TAGS[value.dtype], value.tobytes())


def _array(tag: int, data: memoryview) -> Array:
    return np.frombuffer(data, _DTYPES[tag])


def _checked(kind: Any, value: Any) -> Array:
    """An array, if it is what a field is declared to be: NDArray[...] of its type."""
    if not isinstance(value, np.ndarray) or value.dtype != kind.__args__[1].__args__[0]:
        raise ValueError(f"expected {kind}")
    return value


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_written)
