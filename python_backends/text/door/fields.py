"""Reads the fields of a request as the table says. Of the model, it uses only the size of the vocabulary.

Every refusal names the field, the value and the limit. Called by the door.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from python_backends.nouns.request import BASE, MAX_STOP_WORDS, AdapterVersion, ModelLimits, RefusedError
from python_backends.text.door.chat_fields import EXTRAS
from python_backends.text.door.prompt_fields import PromptBounds, read_prompt
from python_backends.text.door.table import (
    ALL_FIELDS,
    FIELDS,
    KNOWN,
    LAST_TOKEN,
    MAX_INT,
    NEUTRAL,
    OTHER_NAMES,
    SUPPORTED,
    TOP_LOG_PROBS,
    VOCABULARY,
    Field,
)
from python_backends.text.door.values import (
    Fields,
    flag,
    integer,
    integers,
    number,
    numbers,
    plain,
    row,
    shown,
    string,
    strings,
)

MAX_NAME_BYTES = 256
MAX_NAMED = 16  # adapters in a refusal
# Triton's own parameters: ignored here
TRITONS_PARAMETERS = ("id", "priority", "sequence_id", "sequence_start", "sequence_end", "binary_data_output")
TRITONS_PREFIX = "triton_"

WORDS = ("stop_words", "bad_words")
MAX_BAD_WORDS = 64  # each costs a few comparisons a token
MAX_WORD_BYTES = 256
MAX_BIASES = 1024  # each slot keeps as many places as the request with the most of them needs
MAX_TOP_LOG_PROBS = 20  # as many as OpenAI's interface gives

# values of all fields of the table and of `timeout`, each in its range; the default if absent
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FieldReader:
    """Reads the fields of requests to one model."""

    prompt: PromptBounds
    vocab_size: int
    max_model_tokens: int

    def read(self, fields: Fields) -> Values:
        """Returns the checked values. Raises RefusedError."""
        _refuse_unsupported(fields)
        prompt = read_prompt(fields, self.prompt)
        values = {
            name: self._value(fields, name, field)
            for name, field in ALL_FIELDS.items()
            if name not in prompt and name not in EXTRAS
        }
        self._check(fields, values)
        if values["text_input_is_rendered"] and prompt["text_input"] is None:
            raise RefusedError("text_input_is_rendered = true: needs text_input")
        return prompt | values

    def _check(self, fields: Fields, values: dict[str, Any]) -> None:
        """Checks what is more than a range, and reads the words. Raises RefusedError."""
        if values["top_p"] == 0.0:
            raise RefusedError("top_p = 0.0: must be above 0 and at most 1")
        values["stop_words"] = _words(fields, "stop_words", MAX_STOP_WORDS)
        values["bad_words"] = _words(fields, "bad_words", MAX_BAD_WORDS)
        _check_biases(values["logit_bias_ids"], values["logit_bias_values"])
        count = values["num_top_log_probs"]
        if count and not values["return_log_probs"]:
            raise RefusedError(
                f"num_top_log_probs = {count}: needs return_log_probs = true, must be 0 or absent without"
            )
        _check_prompt_returned(values)

    def _value(self, fields: Fields, name: str, field: Field) -> Any:
        """Returns a field's value, checked for the type and range in the table; its default if it is absent.
        Raises RefusedError.
        """
        if name not in fields or name in WORDS or name in NEUTRAL:
            return field.default
        if field.also and (also := _found(plain(name, fields[name]), field.also)) is not None:
            return also
        if field.dtype == "FP32" and field.is_list:
            return tuple(numbers(fields, name, field.least, self._most(field), self._longest(name)))
        if field.dtype == "FP32":
            return number(fields, name, field.least, self._most(field))
        if field.dtype == "BOOL":
            return flag(fields, name)
        if field.dtype == "STRING":
            return string(fields, name, self._most(field))
        if field.is_list:
            return tuple(integers(fields, name, field.least, self._most(field), self._longest(name)))
        return integer(fields, name, field.least, self._most(field))

    def _longest(self, name: str) -> int:
        """How many numbers a list may have at most. What else bounds the delivered tokens, the door knows."""
        return {"stop_token_ids": MAX_STOP_WORDS, "delivered_ids": self.max_model_tokens}.get(
            name, MAX_BIASES
        )

    def _most(self, field: Field) -> float:
        if not isinstance(field.most, str):
            return field.most
        most_log_probs = min(MAX_TOP_LOG_PROBS, self.vocab_size)
        return {VOCABULARY: self.vocab_size, LAST_TOKEN: self.vocab_size - 1, TOP_LOG_PROBS: most_log_probs}[
            field.most
        ]


def stop_ids(values: Values) -> tuple[int, ...]:
    """Returns the token ids that the request names as ends of the answer."""
    end_id = values["end_id"]
    return (*values["stop_token_ids"], *([] if end_id is None or end_id < 0 else [end_id]))


def biases(values: Values) -> tuple[tuple[int, float], ...]:
    """Returns the token ids to whose logits something is added, and what."""
    pairs = zip(values["logit_bias_ids"], values["logit_bias_values"], strict=True)
    return tuple((token, value) for token, value in pairs if value)


def _check_biases(ids: Sequence[int], values: Sequence[float]) -> None:
    """Raises RefusedError."""
    if len(ids) != len(values):
        counts = {"logit_bias_ids": len(ids), "logit_bias_values": len(values)}
        given, other = counts if ids else reversed(counts)
        raise RefusedError(
            f"{given} = {counts[given]} values: {other} must have as many, and has {counts[other]}"
        )
    if len(set(ids)) < len(ids):
        [(twice, _)] = Counter(ids).most_common(1)
        raise RefusedError(f"logit_bias_ids = {twice}: is there twice")


def _check_prompt_returned(values: Values) -> None:
    """Raises RefusedError."""
    scores = values["return_prompt_log_probs"]
    if scores and not values["return_log_probs"]:
        raise RefusedError("return_prompt_log_probs = true: needs return_log_probs = true")
    if values["max_tokens"] == 0 and values["exclude_input_in_output"] and not scores:
        raise RefusedError(
            f"max_tokens = 0: must be a whole number between 1 and {MAX_INT}, unless exclude_input_in_output"
            " = false or return_prompt_log_probs = true"
        )


def _found(value: Any, wanted: Iterable[int]) -> int | None:
    """Which of `wanted` this value is; None: none."""
    return next((each for each in wanted if value == each and not isinstance(value, bool)), None)


def refuse_what_the_engine_lacks(values: Values, engine: ModelLimits) -> None:
    """Raises RefusedError if the request needs a field that the engine doesn't have."""
    for name in engine.unsupported:
        if values[name] != FIELDS[name].default:
            raise RefusedError(
                f"{name} = {shown(values[name])}: the engine of this server can't follow it; leave it out"
            )


def adapter_of(values: Values, adapters: Sequence[AdapterVersion]) -> AdapterVersion:
    """The adapter that the request names, its newest version if it names none. Raises RefusedError."""
    name, number = values["lora_name"], values["lora_task_id"]
    if name and number is not None:
        raise RefusedError(
            f"lora_name = {shown(name)}, lora_task_id = {number}: at most one of them may be given"
        )
    field, wanted = ("lora_name", name) if number is None else ("lora_task_id", str(number))
    if not wanted:
        return BASE
    for adapter in reversed(adapters):
        if wanted in (adapter.name, adapter.full_name):
            return adapter
    raise RefusedError(f"{field} = {shown(wanted if number is None else number)}: {_allowed(adapters)}")


def _allowed(adapters: Sequence[AdapterVersion]) -> str:
    if not adapters:
        return "must be absent: this server has no adapters"
    names = list(dict.fromkeys(adapter.name for adapter in adapters))
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"must be one of {', '.join(names[:MAX_NAMED])}{more}, or absent"


def of_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields among the parameters of a Triton request: `timeout`, or none. Over HTTP, every JSON
    key that is not an input becomes a parameter. So an unknown parameter is refused: it is most probably a
    field with a wrong name. Raises RefusedError.
    """
    for name in parameters:
        if name in KNOWN and name != "timeout":
            raise RefusedError(f"{name}: must be an input of the request, not a parameter")
    fields = {name: value for name, value in parameters.items() if not _is_tritons(name)}
    _refuse_unknown(fields)
    return fields


def _is_tritons(name: str) -> bool:
    return name in TRITONS_PARAMETERS or name.startswith(TRITONS_PREFIX)


# --- words


def _words(fields: Fields, name: str, most: int) -> tuple[str, ...]:
    words = strings(fields, name, most)
    for i, word in enumerate(words):
        size = len(word.encode())
        if not 1 <= size <= MAX_WORD_BYTES:
            raise RefusedError(f"{name}[{i}] = {size} bytes: must have 1 to {MAX_WORD_BYTES}")
    return tuple(dict.fromkeys(words))


# --- unknown and unsupported fields


def _refuse_unknown(names: Iterable[str]) -> None:
    unknown = sorted(set(names) - KNOWN)
    if unknown:
        nearest = _nearest(unknown[0])
        raise RefusedError(
            f"{shown(unknown[0])}: there is no such field" + (f"; did you mean {nearest}?" if nearest else "")
        )


def _nearest(name: str) -> str:
    """Returns the field name that is most similar to an unknown one, or "". Other APIs join words
    ("logprobs") or shorten names ("stop").
    """
    asked = name[:MAX_NAME_BYTES].lower()
    joined = asked.replace("_", "")
    if asked in OTHER_NAMES:
        return OTHER_NAMES[asked]
    holding = [known for known in SUPPORTED if len(joined) > 2 and joined in known.replace("_", "")]
    alike = difflib.get_close_matches(asked, sorted(SUPPORTED), n=1)
    return min(holding, key=len) if holding else "".join(alike)


def _refuse_unsupported(fields: Fields) -> None:
    _refuse_unknown(fields)
    for name in NEUTRAL & fields.keys():
        field = FIELDS[name]
        given = fields[name]
        values = row(name, given, MAX_BIASES) if field.is_list else [plain(name, given)]
        for value in values:
            if value != field.only or isinstance(value, bool) != (field.dtype == "BOOL"):
                raise RefusedError(
                    f"{name} = {shown(value)}: {field.meaning}; must be {field.only!r} or absent"
                )
