"""The fields of a request: names, kinds and ranges. Knows no model but the size of its vocabulary.

Every refusal names the field, the value and the limit. Called by the door.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from python_backends.nouns.request import ModelLimits, RefusedError
from python_backends.settings import LimitSettings
from python_backends.text.door.values import MAX_INT, Fields, flag, integer, integers, number, plain, shown, string, strings, unicode

ROLES = ("system", "developer", "user", "assistant", "tool")  # a role stands inside special tokens: no other word may
MAX_SEED = (1 << 64) - 1
PENALTIES = (-2.0, 2.0)  # presence and frequency, as OpenAI and vLLM have them
REPETITION_PENALTIES = (0.0625, 16.0)  # exact in float32
MAX_INSTRUCTION_BYTES = 4096
MAX_TIMEOUT_US = 10**15  # thirty years
MAX_NAME_BYTES = 256
BYTES_PER_TOKEN = 32  # of a prompt, on average: ten times as many as usual
JSON_BYTES = 8  # for each byte of messages: JSON may write six for one, and has names and braces

# Known to clients of TensorRT-LLM's ensemble: taken when they say nothing, refused when they ask for something.
NEUTRAL: dict[str, float | str] = {"beam_width": 1}
SUPPORTED = (
    *("text_input", "messages", "instruction", "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "stop_words", "stop_token_ids", "bad_words", "end_id", "pad_id"),
    *("return_log_probs", "num_top_log_probs"),
    *("stream", "exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens", "timeout", "request_priority"),
    "lora_name",
)
ASKS_FOR_NOTHING: dict[str, float | None] = {"top_p": 1.0, "repetition_penalty": 1.0, "seed": None}  # others: zero or nothing
KNOWN = frozenset((*SUPPORTED, *NEUTRAL, "lora_task_id"))
TRITONS_PARAMETERS = ("id", "priority", "sequence_id", "sequence_start", "sequence_end", "binary_data_output")  # mean nothing here
TRITONS_PREFIX = "triton_"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request's fields, each one in its range."""

    text: str | None  # None: `messages` has the prompt
    messages: tuple[dict[str, str], ...]
    instruction: str | None  # None: it is looked for in the prompt
    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop_ids: tuple[int, ...]
    stop_words: tuple[str, ...]
    bad_words: tuple[str, ...]
    log_probs: bool
    num_top_log_probs: int
    stream: bool
    wants_echo: bool
    wants_num_input_tokens: bool
    wants_num_output_tokens: bool
    timeout_us: int
    priority: int
    adapter: str


@dataclass(frozen=True, slots=True)
class PromptBounds:
    """How much of a prompt is read at all."""

    max_bytes: int  # of a text, or of all messages' contents
    max_json_bytes: int
    max_messages: int
    limit: str = ""  # says what limits the bytes


def bounds(limits: LimitSettings, max_model_tokens: int) -> PromptBounds:
    """A megabyte is no prompt for a context of 2,048 tokens: so many bytes are read as any text of that many tokens may have."""
    derived = BYTES_PER_TOKEN * max_model_tokens
    limit = "limits.max_prompt_bytes" if limits.max_prompt_bytes <= derived else f"{BYTES_PER_TOKEN} a token of this model's context"
    most = min(limits.max_prompt_bytes, derived)
    return PromptBounds(most, min(limits.max_prompt_bytes, JSON_BYTES * most), max_model_tokens, f" ({limit})")


def read_ask(fields: Fields, limits: LimitSettings, prompt: PromptBounds, vocab_size: int) -> Ask:
    """Raises RefusedError."""
    _refuse_unsupported(fields)
    return Ask(
        text=_text(fields, prompt),
        messages=_messages(fields, prompt),
        instruction=string(fields, "instruction", MAX_INSTRUCTION_BYTES) if "instruction" in fields else None,
        max_tokens=integer(fields, "max_tokens", 1, MAX_INT),
        min_tokens=integer(fields, "min_tokens", 0, MAX_INT) or 0,
        temperature=number(fields, "temperature", 0.0, 100.0, default=0.0),
        top_k=integer(fields, "top_k", 0, vocab_size) or 0,
        top_p=_top_p(fields),
        min_p=number(fields, "min_p", 0.0, 1.0, default=0.0),
        seed=integer(fields, "seed", 0, MAX_SEED),
        repetition_penalty=number(fields, "repetition_penalty", *REPETITION_PENALTIES, default=1.0),
        presence_penalty=number(fields, "presence_penalty", *PENALTIES, default=0.0),
        frequency_penalty=number(fields, "frequency_penalty", *PENALTIES, default=0.0),
        stop_ids=_stop_ids(fields, limits, vocab_size),
        stop_words=_words(fields, "stop_words", limits.max_stop_words, limits),
        bad_words=_words(fields, "bad_words", limits.max_bad_words, limits),
        log_probs=flag(fields, "return_log_probs", default=False),
        num_top_log_probs=_num_top_log_probs(fields, limits, vocab_size),
        stream=flag(fields, "stream", default=False),
        wants_echo=not flag(fields, "exclude_input_in_output", default=True),
        wants_num_input_tokens=flag(fields, "return_num_input_tokens", default=False),
        wants_num_output_tokens=flag(fields, "return_num_output_tokens", default=False),
        timeout_us=integer(fields, "timeout", 0, MAX_TIMEOUT_US) or 0,
        priority=integer(fields, "request_priority", -MAX_INT, MAX_INT) or 0,
        adapter=string(fields, "lora_name", MAX_NAME_BYTES) if "lora_name" in fields else "",
    )


def refuse_what_the_engine_lacks(ask: Ask, engine: ModelLimits) -> None:
    """Raises RefusedError."""
    for name in engine.unsupported:
        value = getattr(ask, {"return_log_probs": "log_probs"}.get(name, name))
        if value != ASKS_FOR_NOTHING.get(name, type(value)()):
            raise RefusedError(f"{name} = {shown(value)}: the engine of this server can't follow it; leave it out")
    if ask.adapter and ask.adapter not in engine.adapters:
        allowed = f"one of {', '.join(engine.adapters)}, or absent" if engine.adapters else "absent: this server has no adapters"
        raise RefusedError(f"lora_name = {shown(ask.adapter)}: must be {allowed}")


def of_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The fields among the parameters of a Triton request: `timeout`, or none. Over HTTP every JSON key that is no input is a
    parameter, so an unknown one is most probably a field with a wrong name. Raises RefusedError.
    """
    for name in parameters:
        if name in KNOWN and name != "timeout":
            raise RefusedError(f"{name}: must be an input of the request, not a parameter")
    fields = {name: value for name, value in parameters.items() if not _is_tritons(name)}
    _refuse_unknown(fields)
    return fields


def _is_tritons(name: str) -> bool:
    return name in TRITONS_PARAMETERS or name.startswith(TRITONS_PREFIX)


# --- the prompt


def _text(fields: Fields, prompt: PromptBounds) -> str | None:
    if ("text_input" in fields) == ("messages" in fields):
        given = "both were" if "messages" in fields else "neither was"
        raise RefusedError(f"text_input, messages: exactly one of them must be given, {given}")
    return string(fields, "text_input", prompt.max_bytes, prompt.limit) if "text_input" in fields else None


def _messages(fields: Fields, prompt: PromptBounds) -> tuple[dict[str, str], ...]:
    if "messages" not in fields:
        return ()
    text = string(fields, "messages", prompt.max_json_bytes, prompt.limit)
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"messages = {shown(text)}: must be JSON ({error})") from error
    if not isinstance(messages, list) or not messages:
        raise RefusedError(f"messages = {shown(text)}: must be a JSON list of at least one message")
    most = prompt.max_messages
    if len(messages) > most:
        raise RefusedError(f"messages = {len(messages)} messages: must be at most {most}, one for each token of this model's context")
    read = tuple(_message(f"messages[{i}]", message) for i, message in enumerate(messages))
    size = sum(len(message["content"].encode()) for message in read)
    if size > prompt.max_bytes:
        raise RefusedError(f"messages = {size} bytes of content: must be at most {prompt.max_bytes}{prompt.limit}")
    return read


def _message(name: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        raise RefusedError(f"{name} = {shown(message)}: must be an object with role and content, and nothing else")
    if message["role"] not in ROLES:
        raise RefusedError(f"{name}.role = {shown(message['role'])}: must be one of {', '.join(ROLES)}")
    if not isinstance(message["content"], str):
        raise RefusedError(f"{name}.content = {shown(message['content'])}: must be a string")
    return {"role": message["role"], "content": unicode(f"{name}.content", message["content"])}


# --- what ends the answer


def _stop_ids(fields: Fields, limits: LimitSettings, vocab_size: int) -> tuple[int, ...]:
    ids = integers(fields, "stop_token_ids", 0, vocab_size - 1)
    if len(ids) > limits.max_stop_words:
        raise RefusedError(f"stop_token_ids = {len(ids)} ids: must be at most {limits.max_stop_words}")
    end_id = integer(fields, "end_id", -1, vocab_size - 1)
    return (*ids, *([] if end_id is None or end_id < 0 else [end_id]))


def _words(fields: Fields, name: str, most: int, limits: LimitSettings) -> tuple[str, ...]:
    words = strings(fields, name, most)
    for i, word in enumerate(words):
        size = len(word.encode())
        if not 1 <= size <= limits.max_stop_word_bytes:
            raise RefusedError(f"{name}[{i}] = {size} bytes: must have 1 to {limits.max_stop_word_bytes}")
    return tuple(dict.fromkeys(words))


# --- how tokens are chosen, and what is told of it


def _top_p(fields: Fields) -> float:
    value = number(fields, "top_p", 0.0, 1.0, default=1.0)
    if value == 0.0:
        raise RefusedError("top_p = 0.0: must be above 0 and at most 1")
    return value


def _num_top_log_probs(fields: Fields, limits: LimitSettings, vocab_size: int) -> int:
    count = integer(fields, "num_top_log_probs", 0, min(limits.max_top_log_probs, vocab_size)) or 0
    if count and not flag(fields, "return_log_probs", default=False):
        raise RefusedError(f"num_top_log_probs = {count}: needs return_log_probs = true, must be 0 or absent without")
    return count


# --- what is not there


def _refuse_unknown(names: Iterable[str]) -> None:
    unknown = sorted(set(names) - KNOWN)
    if unknown:
        nearest = _nearest(unknown[0])
        raise RefusedError(f"{shown(unknown[0])}: there is no such field" + (f"; did you mean {nearest}?" if nearest else ""))


def _nearest(name: str) -> str:
    """The field whose name is most like an unknown one, or nothing. Other APIs join words ("logprobs") or shorten names ("stop")."""
    asked = name[:MAX_NAME_BYTES].lower()
    joined = asked.replace("_", "")
    holding = [known for known in SUPPORTED if len(joined) > 2 and joined in known.replace("_", "")]
    alike = difflib.get_close_matches(asked, sorted(SUPPORTED), n=1)
    return min(holding, key=len) if holding else "".join(alike)


def _refuse_unsupported(fields: Fields) -> None:
    _refuse_unknown(fields)
    for name, neutral in NEUTRAL.items():
        if name in fields and (value := plain(name, fields[name])) != neutral:
            raise RefusedError(f"{name} = {shown(value)}: not supported yet, must be {neutral!r} or absent")
    if "lora_task_id" in fields:
        raise RefusedError(f"lora_task_id = {shown(plain('lora_task_id', fields['lora_task_id']))}: not supported yet, must be absent")
