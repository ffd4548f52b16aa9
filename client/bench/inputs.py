"""The requests of a load test: the bundled model's tasks, random words, or a file of JSON lines."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from ..errors import GaplessError
from ..wire import Prompt, request_message

PROMPTS = ("text_input", "messages", "input_ids")
TASKS = Path(__file__).with_name("tasks.jsonl")  # a task of the bundled model in each line
RANDOM_TOKENS = 64  # of an answer to random words, whose length would be random


class InputsError(ValueError):
    """A file can't be used. The message names file, line and reason."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: prompt and parameters."""

    prompt: Prompt
    parameters: Mapping[str, Any] = field(default_factory=dict)


def asks(kind: str, words: int, seed: int, parameters: Mapping[str, Any]) -> Iterator[Ask]:
    """Yields requests without end. `kind` is `tasks`, `random` or a file; `parameters` override those of its
    lines. Raises InputsError.
    """
    if kind == "random":
        fixed = {"max_tokens": RANDOM_TOKENS, "min_tokens": parameters.get("max_tokens", RANDOM_TOKENS)}
        return (Ask(text, {**fixed, **parameters}) for text in random_texts(words, seed))
    read = read_lines(TASKS if kind == "tasks" else Path(kind))
    random.Random(seed).shuffle(read)
    return (Ask(each.prompt, {**each.parameters, **parameters}) for each in cycle(read))


def random_texts(words: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    while True:
        yield " ".join(
            "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(words)
        )


def read_lines(path: Path) -> list[Ask]:
    try:
        lines = path.read_text("utf-8").split("\n")  # JSON may contain what else ends lines: U+2028, U+0085
    except OSError as error:
        raise InputsError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputsError(f"{path}: must be UTF-8 ({error})") from error
    read = [_ask(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not read:
        raise InputsError(f"{path}: has no request")
    return read


def _ask(where: str, line: str) -> Ask:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputsError(f"{where}: must be JSON ({error})") from error
    given = [name for name in PROMPTS if name in fields] if isinstance(fields, dict) else []
    if len(given) != 1:
        raise InputsError(f"{where}: must be an object with either text_input, messages or input_ids")
    if not isinstance(fields.get("text_input", ""), str):
        raise InputsError(f"{where}: text_input must be a string")
    if not _are_messages(fields.get("messages", [])):
        raise InputsError(f"{where}: messages must be a list of objects with texts, such as role and content")
    if not isinstance(fields.get("input_ids", []), list) or fields.get("input_ids") == []:
        raise InputsError(f"{where}: input_ids must be a list of at least one token id")
    parameters = {name: value for name, value in fields.items() if name not in (*PROMPTS, "task")}
    ask = Ask(fields[given[0]], parameters)
    try:
        request_message(ask.prompt, True, parameters)
    except GaplessError as error:
        raise InputsError(f"{where}: {error}") from error
    return ask


def _are_messages(given: Any) -> bool:
    return isinstance(given, list) and all(
        isinstance(message, dict) and all(isinstance(text, str) for text in message.values())
        for message in given
    )


def take(source: Iterator[Ask], count: int) -> list[Ask]:
    return list(islice(source, count))
