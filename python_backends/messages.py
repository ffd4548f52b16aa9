"""What processes say to each other, and how it is written: msgpack, numpy arrays as raw bytes, one frame a message. Never pickle.

Between scheduler model and instance every frame is (sender incarnation, receiver incarnation, messages): what an earlier life said
or was told is dropped. The same writing carries a `Request` from tokenizer to scheduler and a `TokenWindow` to the detokenizer.
"""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from python_backends.request import (
    Feedback,
    Finish,
    Floats,
    Idle,
    Ids,
    LengthPrediction,
    LogProbs,
    ModelLimits,
    Request,
    Sampling,
    Subject,
    TokenWindow,
)
from python_backends.step import RowLogProbs, Started, Tokens

NOBODY = ""  # the receiver of a first hello


class BadMessageError(ValueError):
    """A frame that none of our processes wrote."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Opens a connection, and answers a frame from or for somebody unknown. An instance says what it can take."""

    limits: ModelLimits | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Submit:
    """A request that is to go on behind the output tokens `delivered`, as life `epoch` of its stream."""

    request: Request
    delivered: Ids  # [n]
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """How long the answer to a request that was submitted before is expected to be; it may come late, or never."""

    request_id: int
    prediction: LengthPrediction


@dataclass(frozen=True, slots=True, eq=False)
class LengthAnswer:
    """What the predictor says to one Subject."""

    prediction: LengthPrediction | None = None  # None: nothing is known yet
    version: int = 0  # of the forest that said so; 0: recent history did
    features: Floats | None = None  # [NUM_FEATURES] if there was time to make them
    encoder: str = ""  # that made them


@dataclass(frozen=True, slots=True, eq=False)
class AnswerRecord:
    """One answer that has ended, for the request log."""

    at_s: float  # Unix time
    instruction: str
    num_prompt_tokens: int
    num_input_tokens: int
    num_output_tokens: int
    finish: Finish
    predicted: LengthAnswer
    user_input: str = ""  # only where prompts are kept


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for this request any more."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An instance can't take this request."""

    request_id: int
    error: str


@dataclass(frozen=True, slots=True, eq=False)
class MoreTokens:
    """One more step of the rows that the last Tokens of this session named. Its tokens are a frame of their own: `links/token_runs`."""

    further: int  # tokens that every row has gone on since the first step of the run
    finishes: NDArray[np.uint8] | None  # [n] Finish; None: all go on
    log_probs: RowLogProbs | None


@dataclass(frozen=True, slots=True)
class Load:
    """Heartbeat of an instance, and what it carries at the moment."""

    num_running: int = 0
    num_waiting: int = 0
    num_slots: int = 0
    num_used_blocks: int = 0
    num_retained_blocks: int = 0
    num_blocks: int = 0
    num_evictions: int = 0
    peak_blocks: int = 0  # that will be in use at most, as admission reckons
    gap_counts: tuple[int, ...] = ()  # token gaps since the last heartbeat, as the histogram of metrics counts them
    gap_sum_s: float = 0.0
    draining: bool = False

    def is_contested(self, num_open: int) -> bool:
        """Whether `num_open` requests compete for slots or memory, as far as this tells: then it matters whose turn it is."""
        return num_open > self.num_slots or self.num_waiting > 0 or 2 * self.num_used_blocks > self.num_blocks


Message = Hello | Submit | Predicted | Cancel | Started | Tokens | MoreTokens | Load | Failed

_KINDS: tuple[type[Any], ...] = (
    Sampling,
    Request,
    TokenWindow,
    Feedback,
    ModelLimits,
    Hello,
    Submit,
    Cancel,
    Tokens,
    Started,
    Load,
    Failed,
    LogProbs,
    RowLogProbs,
    Idle,
    LengthPrediction,
    Predicted,
    Subject,
    LengthAnswer,
    AnswerRecord,
    MoreTokens,
)
_TAGS = {kind: tag for tag, kind in enumerate(_KINDS)}
_FIELDS: tuple[tuple[str, ...], ...] = tuple(tuple(field.name for field in dataclasses.fields(kind)) for kind in _KINDS)
_FINISH_AT = tuple(names.index("finish") if "finish" in names else None for names in _FIELDS)  # msgpack makes a number of it
_DTYPES = tuple(np.dtype(name) for name in ("<i4", "<i8", "|u1", "<f4"))
_DTYPE_TAGS = {dtype: bytes([tag]) for tag, dtype in enumerate(_DTYPES)}
_ARRAY, _KIND = 1, 2  # msgpack extension types
_BUFFER_BYTES = 512  # to begin with; its own, 256 KiB for every message within a message, come from the kernel and go back at once


def new_incarnation() -> str:
    """Names one life of a process."""
    return secrets.token_hex(8)


def pack(message: Any) -> bytes:
    """A message, or a tuple of messages and plain values, as bytes."""
    return msgpack.packb(message, default=_encode, buf_size=_BUFFER_BYTES)  # type: ignore[no-any-return]


def unpack(frame: bytes | memoryview) -> Any:
    """What `pack` was given; arrays are read-only views. Raises BadMessageError."""
    try:
        return msgpack.unpackb(frame, ext_hook=_decode, use_list=False)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise BadMessageError(f"not a message: {error}") from error


def _encode(value: Any) -> msgpack.ExtType:
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(_ARRAY, _DTYPE_TAGS[value.dtype] + value.tobytes())
    tag = _TAGS[type(value)]
    fields = [getattr(value, name) for name in _FIELDS[tag]]
    return msgpack.ExtType(_KIND, bytes([tag]) + pack(fields))


def _decode(code: int, data: bytes) -> Any:
    if code == _ARRAY:
        return np.frombuffer(data, _DTYPES[data[0]], offset=1)
    tag, fields = data[0], unpack(data[1:])
    at = _FINISH_AT[tag]
    return _KINDS[tag](*(fields if at is None else (*fields[:at], Finish(fields[at]), *fields[at + 1 :])))
