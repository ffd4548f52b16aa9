"""The parameters of a request: one line each, with the type in Python, the type in Triton and the meaning.

`Parameters` is the only list of them: keyword arguments of the clients, options of chat and bench, and fields
of a JSONL file are made from it. A test compares it with `model_repository/ensemble/config.pbtxt`. An absent
parameter is not sent; the server uses its default.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, get_args, get_origin, get_type_hints

from .errors import RefusedError

TIMEOUT = "timeout"  # not a tensor: the request's own timeout, in microseconds
FORMATS = {"INT32": "<i", "UINT64": "<Q", "FP32": "<f", "BOOL": "<?"}
SHOWN = 40  # characters of a value in a refusal


@dataclass(frozen=True, slots=True)
class As:
    """The type of a parameter in Triton, and its meaning."""

    dtype: str
    meaning: str


class Parameters(TypedDict, total=False):
    """All parameters of a request."""

    tools: Annotated[str, As("BYTES", "functions that the model is told of, as JSON")]
    chat_template_kwargs: Annotated[str, As("BYTES", "more values for the chat template, as JSON")]
    continue_final_message: Annotated[bool, As("BOOL", "the answer goes on with the last message")]
    text_input_is_rendered: Annotated[
        bool, As("BOOL", "the text is a whole prompt: special tokens in it are meant as such")
    ]
    delivered_ids: Annotated[
        Sequence[int], As("INT32", "the first tokens of the answer, which goes on after them")
    ]
    max_tokens: Annotated[int, As("INT32", "longest answer, in tokens; -1: until the context ends")]
    min_tokens: Annotated[int, As("INT32", "shortest answer, in tokens")]
    temperature: Annotated[float, As("FP32", "0: the most probable token; larger: more varied")]
    top_k: Annotated[int, As("INT32", "the most probable tokens are kept, this many; 0: all")]
    top_p: Annotated[float, As("FP32", "the most probable tokens with this probability together are kept")]
    min_p: Annotated[float, As("FP32", "tokens with this share of the largest probability are kept")]
    seed: Annotated[int, As("UINT64", "the same seed gives the same text")]
    stop_words: Annotated[Sequence[str], As("BYTES", "the answer ends before any of these")]
    bad_words: Annotated[Sequence[str], As("BYTES", "the answer has none of these")]
    stop_token_ids: Annotated[Sequence[int], As("INT32", "token ids that end the answer")]
    end_id: Annotated[int, As("INT32", "one more token id that ends the answer")]
    pad_id: Annotated[int, As("INT32", "accepted for older clients; changes nothing")]
    repetition_penalty: Annotated[float, As("FP32", "above 1: earlier tokens get less probable")]
    presence_penalty: Annotated[float, As("FP32", "subtracted from the logits of the answer's tokens")]
    frequency_penalty: Annotated[float, As("FP32", "the same, once for each time")]
    guided_decoding_guide_type: Annotated[
        str,
        As("BYTES", "what the answer follows: json, json_schema, regex, grammar or structural_tag"),
    ]
    guided_decoding_guide: Annotated[str, As("BYTES", "the schema, expression, grammar or structural tag")]
    logit_bias_ids: Annotated[Sequence[int], As("INT32", "token ids to whose logits something is added")]
    logit_bias_values: Annotated[Sequence[float], As("FP32", "what is added to each of them")]
    beam_width: Annotated[int, As("INT32", "must be 1: there is no beam search")]
    exclude_input_in_output: Annotated[bool, As("BOOL", "false: the input goes before the answer")]
    return_log_probs: Annotated[bool, As("BOOL", "adds the log-probabilities of the answer's tokens")]
    num_top_log_probs: Annotated[
        int, As("INT32", "adds this many most probable tokens to each token, with log-probabilities")
    ]
    return_prompt_log_probs: Annotated[
        bool, As("BOOL", "adds the log-probabilities of the prompt's tokens; needs return_log_probs")
    ]
    return_num_input_tokens: Annotated[bool, As("BOOL", "adds the length of the prompt, in tokens")]
    return_num_output_tokens: Annotated[
        bool, As("BOOL", "adds the number of tokens of each piece of the answer")
    ]
    return_output_ids: Annotated[bool, As("BOOL", "adds the token ids of each piece of the answer")]
    lora_name: Annotated[str, As("BYTES", "the adapter to answer with")]
    lora_task_id: Annotated[int, As("UINT64", "the same by number, for TensorRT-LLM's clients")]
    instruction: Annotated[str, As("BYTES", "what the text asks for: for predicting the answer's length")]
    request_priority: Annotated[int, As("INT32", "larger goes first")]
    deadline_s: Annotated[float, As(TIMEOUT, "the answer ends after this many seconds, complete or not")]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

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
    """Raises RefusedError if a name is not in the table."""
    for name in parameters:
        if name not in TABLE:
            raise RefusedError(f"{name}: there is no such parameter; there are {', '.join(TABLE)}")


def timeout_us(parameters: Mapping[str, Any]) -> int:
    """Returns the request's timeout in microseconds; 0: none. Raises RefusedError."""
    seconds = parameters.get("deadline_s")
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
        raise RefusedError(f"deadline_s = {seconds!r}: must be a number of seconds above 0 and below 1e9")
    return max(1, round(seconds * 1e6))


def packed(name: str, value: Any) -> tuple[int, bytes]:
    """Returns the number of values, and their bytes in Triton's format. Raises RefusedError."""
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
