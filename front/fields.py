"""Reads a body: what has a wrong type, what asks for something that is not there, and what is probably
misspelt, is refused by its name. Other unknown fields are ignored: clients have fields of their own.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, TypeVar

import msgspec

from front.asks import MAX_CHOICES, Ask
from front.errors import ProblemError, refused
from front.log_once import log_once

A = TypeVar("A", bound=Ask)
S = TypeVar("S", bound=msgspec.Struct)

# hints, and what belongs to accounts: taken, and change nothing
IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "request_id", "cache_salt"),
        *("prompt_cache_key", "prompt_cache_retention", "verbosity", "prediction"),
        # of llama.cpp, OpenRouter, KoboldCpp
        *("reasoning_format", "models", "repetition_penalty_range", "frequency_penalty_range"),
        *("length_penalty", "spaces_between_special_tokens", "add_special_tokens"),
    }
)
# what would change the answer and is not there: refused, except with these values, which ask for nothing
REFUSED: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none",),
    "structured_outputs": ({},),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    "best_of": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "modalities": (["text"],),
    **dict.fromkeys(("audio", "web_search_options", "chat_template"), ()),
    "documents": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": ([],),
    "prompt_logprobs": (0,),
    "echo": (False,),
    "return_tokens_as_token_ids": (False,),
}
# the same, of fields that only chats take: a completion would come back without what they ask for
ONLY_OF_CHATS: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
}
ALIKE = 0.85  # a name as similar as this is a known one, misspelt
PLACE = re.compile(r" - at `\$\.?(.*)`$")

MAX_NAMES_COMPARED = 100  # with those that there are: 40 µs each


def read_ask(body: bytes, kind: type[A]) -> A:
    """Returns the request in `body`. Raises ProblemError."""
    given = read_object(body)
    known = frozenset(kind.__struct_fields__)
    for number, name in enumerate(given.keys() - known):
        _check_other(name, given[name], known if number < MAX_NAMES_COMPARED else frozenset())
    ask = _converted(given, kind)
    if not 1 <= ask.num_choices <= MAX_CHOICES:
        raise refused("n", f" = {ask.n}: must be a whole number between 1 and {MAX_CHOICES}")
    return ask


def read_body(body: bytes, kind: type[S]) -> S:
    """Returns what is in a body that asks for no answer. Raises ProblemError."""
    return _converted(read_object(body), kind)


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in `body`. Raises ProblemError."""
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProblemError(400, f"the body must be JSON: {error}", "invalid_json") from None
    if not isinstance(given, dict):
        raise ProblemError(400, "the body must be a JSON object", "invalid_json")
    return given


def _converted(given: dict[str, Any], kind: type[S]) -> S:
    try:
        return msgspec.convert(given, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _of_type(str(error)) from None


def _check_other(name: str, value: Any, known: frozenset[str]) -> None:
    """Of a field that is not taken. Raises ProblemError."""
    if name in IGNORED:
        return
    if name in ONLY_OF_CHATS:
        if value is not None and value not in ONLY_OF_CHATS[name]:
            raise refused(name, ": only chats have it; leave it out", "unsupported_value")
        return
    if name in REFUSED:
        if value is not None and value not in REFUSED[name]:
            raise refused(name, ": this server doesn't have it; leave it out", "unsupported_value")
        return
    if alike := difflib.get_close_matches(name[:64], sorted(known), 1, ALIKE):
        raise refused(name[:64], f": there is no such field; did you mean {alike[0]}?", "unknown_field")
    log_once("ignored: the unknown field %r", name[:64])


def _of_type(said: str) -> ProblemError:
    """Of msgspec's message, which ends with the place."""
    found = PLACE.search(said)
    if found is None:  # a field is missing, or the whole is wrong
        name = re.search(r"missing required field `(\w+)`", said)
        return ProblemError(400, said, "invalid_type", name[1] if name else None)
    return refused(found[1].replace("[...]", ""), f": {said[: found.start()]}", "invalid_type")
