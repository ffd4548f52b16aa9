"""The parameters of a request: one line each, with the type that Python sees, the type that Triton sees, and
what it means.

`Parameters` is the only place that knows them: keyword arguments of the clients, options of chat and bench,
and fields of a JSONL file come from it. A test holds it against `model_repository/ensemble/config.pbtxt`.
What is absent is not sent; the server's default holds.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, get_args, get_origin, get_type_hints

from .errors import RefusedError

TIMEOUT = "timeout"  # no tensor: the request's own timeout, in microseconds
FORMATS = {"INT32": "<i", "UINT64": "<Q", "FP32": "<f", "BOOL": "<?"}
SHOWN = 40  # characters of a value in a refusal


@dataclass(frozen=True, slots=True)
class As:
    """How a parameter travels, and what it means."""

    dtype: str
    meaning: str


class Parameters(TypedDict, total=False):
    max_tokens: Annotated[int, As("INT32", "longest answer, in tokens")]
    min_tokens: Annotated[int, As("INT32", "shortest answer, in tokens")]
    temperature: Annotated[float, As("FP32", "0 takes the likeliest token, more is more varied")]
    top_k: Annotated[int, As("INT32", "only the so many likeliest tokens; 0 is all")]
    top_p: Annotated[float, As("FP32", "only the likeliest tokens that have this probability together")]
    min_p: Annotated[
        float, As("FP32", "only tokens with at least this share of the likeliest one's probability")
    ]
    seed: Annotated[int, As("UINT64", "the same seed gives the same text")]
    stop_words: Annotated[Sequence[str], As("BYTES", "the answer ends before any of these")]
    bad_words: Annotated[Sequence[str], As("BYTES", "the answer has none of these")]
    stop_token_ids: Annotated[Sequence[int], As("INT32", "token ids that end the answer")]
    end_id: Annotated[int, As("INT32", "one more token id that ends the answer")]
    pad_id: Annotated[int, As("INT32", "taken for the sake of older clients; changes nothing")]
    repetition_penalty: Annotated[float, As("FP32", "above 1 makes tokens that were there less likely")]
    presence_penalty: Annotated[float, As("FP32", "taken off the logits of tokens that the answer has")]
    frequency_penalty: Annotated[float, As("FP32", "the same, as often as it has them")]
    beam_width: Annotated[int, As("INT32", "1: there is no beam search")]
    exclude_input_in_output: Annotated[bool, As("BOOL", "false puts the input before the answer")]
    return_log_probs: Annotated[bool, As("BOOL", "adds the log-probabilities of the answer's tokens")]
    num_top_log_probs: Annotated[
        int, As("INT32", "adds the so many likeliest tokens beside each, with their log-probabilities")
    ]
    return_num_input_tokens: Annotated[bool, As("BOOL", "adds the length of the prompt, in tokens")]
    return_num_output_tokens: Annotated[
        bool, As("BOOL", "adds the number of tokens of each piece of the answer")
    ]
    lora_name: Annotated[str, As("BYTES", "the adapter to answer with")]
    lora_task_id: Annotated[int, As("UINT64", "the same by number, as TensorRT-LLM's clients say it")]
    instruction: Annotated[str, As("BYTES", "what the text asks for: for predicting the answer's length")]
    request_priority: Annotated[int, As("INT32", "larger goes first")]
    deadline_s: Annotated[float, As(TIMEOUT, "the answer ends with what there is after so many seconds")]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table as code reads it."""

    kind: type  # of one value
    is_list: bool
    dtype: str
    meaning: str


def _row(hint: Any) -> Row:
    kind, how = get_args(hint)
    is_list = get_origin(kind) is Sequence
    return Row(get_args(kind)[0] if is_list else kind, is_list, how.dtype, how.meaning)


TABLE = {name: _row(hint) for name, hint in get_type_hints(Parameters, include_extras=True).items()}


def check_names(parameters: Mapping[str, Any]) -> None:
    """Raises RefusedError."""
    for name in parameters:
        if name not in TABLE:
            raise RefusedError(f"{name}: there is no such parameter; there are {', '.join(TABLE)}")


def timeout_us(parameters: Mapping[str, Any]) -> int:
    """The request's timeout; 0 is none. Raises RefusedError."""
    seconds = parameters.get("deadline_s")
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
        raise RefusedError(f"deadline_s = {seconds!r}: must be a number of seconds above 0 and below 1e9")
    return max(1, round(seconds * 1e6))


def packed(name: str, value: Any) -> tuple[int, bytes]:
    """How many values, and their bytes as Triton reads them. Raises RefusedError."""
    row = TABLE[name]
    try:
        if row.is_list and isinstance(value, str):
            raise TypeError(value)
        values = list(value) if row.is_list else [value]
        return len(values), b"".join(_packed_one(row, each) for each in values)
    except (struct.error, OverflowError, TypeError, UnicodeEncodeError) as error:
        shown = repr(value)
        shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"
        wanted = f"{'a list of ' if row.is_list else ''}{row.kind.__name__} ({row.dtype})"
        raise RefusedError(f"{name} = {shown}: must be {wanted}") from error


def _packed_one(row: Row, value: Any) -> bytes:
    kinds = (int, float) if row.kind is float else (row.kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and row.kind is not bool):
        raise TypeError(value)
    return packed_text(str(value)) if row.dtype == "BYTES" else struct.pack(FORMATS[row.dtype], value)


def packed_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data
