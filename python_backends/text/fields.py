"""The fields of a request: names, kinds and ranges. Knows no model but the size of its vocabulary.

A value comes as Triton's tensors have it (numpy, with any number of dimensions of 1, strings as bytes) or as plain Python. Every
refusal names the field, the value and the limit. Called by the door.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from python_backends.config import LimitSettings
from python_backends.request import RefusedError

ROLES = ("system", "developer", "user", "assistant", "tool")  # a role stands inside special tokens: no other word may
MAX_SEED = (1 << 64) - 1
MAX_TIMEOUT_US = 10**15  # thirty years
MAX_INT = (1 << 31) - 1
MAX_SHOWN = 40  # characters of a value in a refusal

Fields = Mapping[str, Any]

# Known to clients of TensorRT-LLM's ensemble: taken when they say nothing, refused when they ask for something.
NEUTRAL: dict[str, float | str] = {
    "beam_width": 1,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "return_log_probs": False,
    "lora_name": "",
}
SUPPORTED = (
    *("text_input", "messages", "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "seed", "stop_words", "end_id", "pad_id"),
    *("stream", "exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens", "timeout_us", "request_priority"),
)
KNOWN = frozenset((*SUPPORTED, *NEUTRAL, "lora_task_id", "bad_words"))


@dataclass(frozen=True, slots=True)
class Ask:
    """A request's fields, each one in its range."""

    text: str | None  # None: `messages` has the prompt
    messages: tuple[dict[str, str], ...]
    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    stop_ids: tuple[int, ...]
    stop_words: tuple[str, ...]
    stream: bool
    wants_echo: bool
    wants_num_input_tokens: bool
    wants_num_output_tokens: bool
    timeout_us: int
    priority: int


def read_ask(fields: Fields, limits: LimitSettings, vocab_size: int) -> Ask:
    """Raises RefusedError."""
    _refuse_unsupported(fields)
    return Ask(
        text=_text(fields, limits),
        messages=_messages(fields, limits),
        max_tokens=_integer(fields, "max_tokens", 1, MAX_INT),
        min_tokens=_integer(fields, "min_tokens", 0, MAX_INT) or 0,
        temperature=_number(fields, "temperature", 0.0, 100.0, default=0.0),
        top_k=_integer(fields, "top_k", 0, vocab_size) or 0,
        top_p=_top_p(fields),
        seed=_integer(fields, "seed", 0, MAX_SEED),
        stop_ids=_end_id(fields, vocab_size),
        stop_words=_stop_words(fields, limits),
        stream=_flag(fields, "stream", default=False),
        wants_echo=not _flag(fields, "exclude_input_in_output", default=True),
        wants_num_input_tokens=_flag(fields, "return_num_input_tokens", default=False),
        wants_num_output_tokens=_flag(fields, "return_num_output_tokens", default=False),
        timeout_us=_integer(fields, "timeout_us", 0, MAX_TIMEOUT_US) or 0,
        priority=_integer(fields, "request_priority", -MAX_INT, MAX_INT) or 0,
    )


# --- the prompt


def _text(fields: Fields, limits: LimitSettings) -> str | None:
    if ("text_input" in fields) == ("messages" in fields):
        given = "both were" if "messages" in fields else "neither was"
        raise RefusedError(f"text_input, messages: exactly one of them must be given, {given}")
    return _string(fields, "text_input", limits.max_prompt_bytes) if "text_input" in fields else None


def _messages(fields: Fields, limits: LimitSettings) -> tuple[dict[str, str], ...]:
    if "messages" not in fields:
        return ()
    text = _string(fields, "messages", limits.max_prompt_bytes)
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"messages = {_shown(text)}: must be JSON ({error})") from error
    if not isinstance(messages, list) or not messages:
        raise RefusedError(f"messages = {_shown(text)}: must be a JSON list of at least one message")
    return tuple(_message(f"messages[{i}]", message) for i, message in enumerate(messages))


def _message(name: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        raise RefusedError(f"{name} = {_shown(message)}: must be an object with role and content, and nothing else")
    if message["role"] not in ROLES:
        raise RefusedError(f"{name}.role = {_shown(message['role'])}: must be one of {', '.join(ROLES)}")
    if not isinstance(message["content"], str):
        raise RefusedError(f"{name}.content = {_shown(message['content'])}: must be a string")
    return {"role": message["role"], "content": _unicode(f"{name}.content", message["content"])}


# --- what ends the answer


def _end_id(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    end_id = _integer(fields, "end_id", -1, vocab_size - 1)
    return () if end_id is None or end_id < 0 else (end_id,)


def _stop_words(fields: Fields, limits: LimitSettings) -> tuple[str, ...]:
    words = _strings(fields, "stop_words")
    if len(words) > limits.max_stop_words:
        raise RefusedError(f"stop_words = {len(words)} words: must be at most {limits.max_stop_words}")
    for i, word in enumerate(words):
        size = len(word.encode())
        if not 1 <= size <= limits.max_stop_word_bytes:
            raise RefusedError(f"stop_words[{i}] = {size} bytes: must have 1 to {limits.max_stop_word_bytes}")
    return tuple(dict.fromkeys(words))


# --- what is not there yet


def _refuse_unsupported(fields: Fields) -> None:
    unknown = sorted(set(fields) - KNOWN)
    if unknown:
        raise RefusedError(f"{_shown(unknown[0])}: there is no such field")
    for name, neutral in NEUTRAL.items():
        if name in fields and (value := _plain(name, fields[name])) != neutral:
            raise RefusedError(f"{name} = {_shown(value)}: not supported yet, must be {neutral!r} or absent")
    if "lora_task_id" in fields:
        raise RefusedError(
            f"lora_task_id = {_shown(_plain('lora_task_id', fields['lora_task_id']))}: not supported yet, must be absent"
        )
    if words := _strings(fields, "bad_words"):
        raise RefusedError(f"bad_words = {_shown(words)}: not supported yet, must be empty or absent")


# --- kinds of values


def _number(fields: Fields, name: str, low: float, high: float, *, default: float) -> float:
    if name not in fields:
        return default
    value = _plain(name, fields[name])
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        raise RefusedError(f"{name} = {_shown(value)}: must be a finite number between {low:g} and {high:g}")
    return float(value)


def _top_p(fields: Fields) -> float:
    value = _number(fields, "top_p", 0.0, 1.0, default=1.0)
    if value == 0.0:
        raise RefusedError("top_p = 0.0: must be above 0 and at most 1")
    return value


def _integer(fields: Fields, name: str, low: int, high: int) -> int | None:
    if name not in fields:
        return None
    value = _plain(name, fields[name])
    if type(value) is not int or not low <= value <= high:
        raise RefusedError(f"{name} = {_shown(value)}: must be a whole number between {low} and {high}")
    return value


def _flag(fields: Fields, name: str, *, default: bool) -> bool:
    if name not in fields:
        return default
    value = _plain(name, fields[name])
    if type(value) is not bool:
        raise RefusedError(f"{name} = {_shown(value)}: must be true or false")
    return value


def _string(fields: Fields, name: str, max_bytes: int) -> str:
    value = _plain(name, fields[name])
    if type(value) is not str:
        raise RefusedError(f"{name} = {_shown(value)}: must be a string")
    if len(value.encode()) > max_bytes:
        raise RefusedError(f"{name} = {len(value.encode())} bytes: must be at most {max_bytes}")
    return value


def _strings(fields: Fields, name: str) -> list[str]:
    """One row of strings. Existing clients say "none" with one empty string."""
    value = fields.get(name, [])
    if isinstance(value, np.ndarray):
        if value.ndim > 1 and value.size != value.shape[-1]:
            raise RefusedError(f"{name} has the shape {list(value.shape)}: one row is allowed")
        value = value.ravel().tolist()
    items = [_decoded(name, item) for item in (value if isinstance(value, list | tuple) else [value])]
    odd = [item for item in items if type(item) is not str]
    if odd:
        raise RefusedError(f"{name} = {_shown(odd[0])}: must be strings")
    return [] if items == [""] else items


def _plain(name: str, value: Any) -> Any:
    """The one value of a field, as plain Python."""
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise RefusedError(f"{name} has the shape {list(value.shape)}: exactly one value is allowed")
        value = value.ravel()[0]
    return _decoded(name, value.item() if isinstance(value, np.generic) else value)


def _decoded(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise RefusedError(f"{name} = {_shown(value)}: must be UTF-8, byte {error.start} is not") from error
    return _unicode(name, value) if isinstance(value, str) else value


def _unicode(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(f"{name} = {_shown(text)}: must be Unicode, character {error.start} is half of a pair") from error
    return text


def _shown(value: Any) -> str:
    """A value as it is told to the client: short, and printable wherever it ends up."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
