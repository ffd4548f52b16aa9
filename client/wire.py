"""Converts prompts and parameters to Triton's request, and Triton's responses to pieces of text.

Both clients use it, so they differ only in how they wait. The messages and stubs are tritonclient's.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from tritonclient.grpc import service_pb2

from .errors import RefusedError, from_text
from .parameters import FORMATS, TABLE, TIMEOUT, check_names, packed, packed_text, timeout_us

MODEL = "ensemble"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
# outputs with a value for each token
LISTS = ("output_ids", "output_log_probs", "prompt_ids", "prompt_log_probs")
# outputs with several values for each token
TABLES = ("top_ids", "top_log_probs", "prompt_top_ids", "prompt_top_log_probs")

Message = Mapping[str, Any]  # role and content; docs/parameters.md tells what more there may be
# plain text, a chat to be rendered with the model's own template, or token ids
Prompt = str | Sequence[Message] | Sequence[int]


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}


@dataclass(frozen=True, slots=True)
class Piece:
    """An answer, or a piece of one. The last piece has the reason why the answer ended.

    A piece may have tokens and no text: an incomplete character, or the beginning of a stop word, is held
    back until the next token is known.
    """

    text: str
    finish_reason: str = ""  # stop | length | cancelled | deadline; empty: more pieces follow
    num_input_tokens: int | None = None  # with return_num_input_tokens
    num_cached_tokens: int | None = None  # of these, those that were not computed again
    # of this piece; the sum over all pieces is the answer's (return_num_output_tokens, or with output_ids)
    num_output_tokens: int | None = None
    output_ids: tuple[int, ...] = ()  # the tokens of this piece (return_output_ids, return_log_probs)
    output_log_probs: tuple[float, ...] = ()  # theirs (return_log_probs)
    cum_log_probs: float | None = None  # their sum from the beginning
    top_ids: tuple[tuple[int, ...], ...] = ()  # [token][rank] (num_top_log_probs)
    top_log_probs: tuple[tuple[float, ...], ...] = ()
    # the prompt's tokens, in one piece (return_prompt_log_probs), and the same of all of them but the first
    prompt_ids: tuple[int, ...] = ()
    prompt_log_probs: tuple[float, ...] = ()
    prompt_top_ids: tuple[tuple[int, ...], ...] = ()
    prompt_top_log_probs: tuple[tuple[float, ...], ...] = ()

    @property
    def says_something(self) -> bool:
        """False for an empty piece, which only shows that the connection is alive."""
        return bool(self.text or self.finish_reason or self.output_ids or self.num_output_tokens)


# of a piece, by the output that brings each
FIELDS = {"text_output": "text"} | {name: name for name in Piece.__dataclass_fields__ if name != "text"}


def stream_call(channel: Any) -> Any:
    """Returns what asks one question over `channel`. Triton lets a client ask several in one stream; no other
    follows here, and so request and end of requests leave together: one message and one wake-up, not three.
    """
    return channel.unary_stream(
        STREAM,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )


def request_message(prompt: Prompt, stream: bool, parameters: Mapping[str, Any]) -> Any:
    """Returns a ModelInferRequest. Raises RefusedError."""
    check_names(parameters)
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    _add_prompt(request, prompt)
    _add(request, "stream", "BOOL", 1, struct.pack("<?", stream))
    for name, value in parameters.items():
        if value is not None and TABLE[name].dtype != TIMEOUT:
            _add(request, name, TABLE[name].dtype, *packed(name, value))
    if limit := timeout_us(parameters):
        request.parameters["timeout"].int64_param = limit
    return request


def deadline_us(request: Any) -> int:
    """Returns the deadline of a ModelInferRequest, in microseconds after its arrival; 0: it has none."""
    return int(request.parameters["timeout"].int64_param) if "timeout" in request.parameters else 0


def shorten(request: Any, limit_us: int, spent_s: float) -> None:
    """Sets the deadline to what is left of `limit_us` (0: there is none), at least a microsecond: an answer
    whose time is over is ended by the server.
    """
    if limit_us:
        request.parameters["timeout"].int64_param = max(1, limit_us - int(spent_s * 1e6))


def _add_prompt(request: Any, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        try:
            _add(request, "text_input", "BYTES", 1, packed_text(prompt))
        except UnicodeEncodeError as error:
            raise RefusedError(f"text_input: must be text that UTF-8 can encode ({error})") from error
    elif len(prompt) and not isinstance(prompt[0], Mapping):
        try:
            _add(request, "input_ids", "INT32", len(prompt), struct.pack(f"<{len(prompt)}i", *prompt))
        except struct.error as error:
            raise RefusedError(f"input_ids: must be whole numbers of 32 bits ({error})") from error
    else:
        messages = [dict(cast(Message, message)) for message in prompt]
        try:
            # a server counts its bytes: escapes would be two or three times as many as the letters
            _add(request, "messages", "BYTES", 1, packed_text(json.dumps(messages, ensure_ascii=False)))
        except (TypeError, UnicodeEncodeError) as error:
            raise RefusedError(f"messages: must be JSON that UTF-8 can encode ({error})") from error


def _add(request: Any, name: str, dtype: str, count: int, content: bytes) -> None:
    request.inputs.append(_tensor(name, dtype, count))
    request.raw_input_contents.append(content)


@lru_cache(maxsize=256)
def _tensor(name: str, dtype: str, count: int) -> Any:
    """Made once: all but its content is the same in many requests."""
    return service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=dtype, shape=[1, count])


def read_piece(response: Any) -> Piece:
    """Returns the piece in a ModelStreamInferResponse. Raises GaplessError."""
    if response.error_message:
        raise from_text(response.error_message)
    answer = response.infer_response
    fields: dict[str, Any] = {"text": ""}
    for output, data in zip(answer.outputs, answer.raw_output_contents, strict=True):
        if name := FIELDS.get(output.name):  # others are none that this client knows
            fields[name] = _value(name, output, _values(output.datatype, data))
    if "output_ids" in fields:  # a count beside the ids costs an output of its own
        fields.setdefault("num_output_tokens", len(fields["output_ids"]))
    return Piece(**fields)


def _value(name: str, output: Any, values: Sequence[Any]) -> Any:
    """Returns one output as the value of a field."""
    if name in TABLES:
        return _in_rows(values, output.shape[-1])
    return tuple(values) if name in LISTS else values[0]


def _in_rows(values: Sequence[Any], width: int) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(values[start : start + width]) for start in range(0, len(values), max(1, width)))


def _values(dtype: str, data: bytes) -> Sequence[Any]:
    """Returns all values of one output as Python values."""
    if dtype != "BYTES":
        one = FORMATS[dtype]
        return struct.unpack(f"{one[0]}{len(data) // struct.calcsize(one)}{one[1]}", data)
    texts, start = [], 0
    while start < len(data):
        (size,) = struct.unpack_from("<I", data, start)
        start += 4 + size
        texts.append(data[start - size : start].decode())
    return texts
