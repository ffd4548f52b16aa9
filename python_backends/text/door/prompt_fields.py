"""Reads the fields of which exactly one is the prompt: a text, a chat, or token ids.

Called by `fields`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from python_backends.nouns.request import Ids, RefusedError, TooLongError
from python_backends.settings import LimitSettings
from python_backends.text.door.chat import texts_of_message
from python_backends.text.door.chat_fields import read_extras, read_message
from python_backends.text.door.values import Fields, ids, shown, string

PROMPTS = ("text_input", "messages", "input_ids")
MAX_PROMPT_BYTES = 1_000_000  # of text_input or messages: of English, a quarter of a million tokens
BYTES_PER_TOKEN = 32  # limit of a prompt's average: ten times the usual number
JSON_BYTES = 8  # for each byte of messages: JSON may write six for one, and has names and braces


@dataclass(frozen=True, slots=True)
class PromptBounds:
    """Limits of a prompt, checked before it is encoded."""

    max_bytes: int  # of a text, or of all messages' contents together
    max_json_bytes: int
    max_messages: int
    num_rows: int  # token ids are below this
    limit: str  # for refusals: where max_bytes comes from, and the context


def bounds(limits: LimitSettings, max_model_tokens: int, num_rows: int) -> PromptBounds:
    """Returns the limits of a prompt: BYTES_PER_TOKEN for each token that it may have, or MAX_PROMPT_BYTES if
    that is less.
    """
    tokens, which = max_model_tokens, "this model's context"
    if 0 < limits.max_prompt_tokens < max_model_tokens:
        tokens, which = limits.max_prompt_tokens, "limits.max_prompt_tokens"
    of_tokens = BYTES_PER_TOKEN * tokens
    limit = f" ({BYTES_PER_TOKEN} a token of {which})" if of_tokens <= MAX_PROMPT_BYTES else ""
    most = min(MAX_PROMPT_BYTES, of_tokens)
    most_json = min(MAX_PROMPT_BYTES, JSON_BYTES * most)
    return PromptBounds(most, most_json, max_model_tokens, num_rows, limit + of_context(max_model_tokens))


def of_context(max_model_tokens: int) -> str:
    """Returns the end of refusals of what is too long, in the words that clients look for."""
    return f". This model's maximum context length is {max_model_tokens} tokens."


def read_prompt(fields: Fields, prompt: PromptBounds) -> dict[str, Any]:
    """Returns the prompt by the name of its field, None by the others; what belongs to a chat as `extras`.
    Raises RefusedError.
    """
    given = [name for name in PROMPTS if name in fields]
    if len(given) != 1:
        said = f"{' and '.join(given)} were" if given else "none was"
        raise RefusedError(f"{', '.join(PROMPTS)}: exactly one of them must be given, {said}")
    readers = {"text_input": _text, "messages": _messages, "input_ids": _ids}
    made = {name: readers[name](fields, prompt) if name in given else None for name in PROMPTS}
    return {**made, "extras": read_extras(fields, prompt.max_json_bytes, prompt.limit)}


def _text(fields: Fields, prompt: PromptBounds) -> str:
    return string(fields, "text_input", prompt.max_bytes, prompt.limit)


def _ids(fields: Fields, prompt: PromptBounds) -> Ids:
    return ids(fields, "input_ids", prompt.num_rows - 1)


def _messages(fields: Fields, prompt: PromptBounds) -> tuple[dict[str, Any], ...]:
    text = string(fields, "messages", prompt.max_json_bytes, prompt.limit)
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"messages = {shown(text)}: must be JSON ({error})") from error
    if not isinstance(messages, list) or not messages:
        raise RefusedError(f"messages = {shown(text)}: must be a JSON list of at least one message")
    most = prompt.max_messages
    if len(messages) > most:
        raise TooLongError(
            f"messages = {len(messages)} messages: must be at most {most}, one for each token"
            + of_context(most)
        )
    read = tuple(read_message(f"messages[{i}]", message) for i, message in enumerate(messages))
    size = sum(len(text.encode()) for message in read for text in texts_of_message(message))
    if size > prompt.max_bytes:
        raise TooLongError(
            f"messages = {size} bytes of content: must be at most {prompt.max_bytes}{prompt.limit}"
        )
    return read
