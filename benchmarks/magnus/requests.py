"""The requests of `magnus`: held-out prompts of the bundled model's eight tasks, and the lengths of its
answers to some of them.

Lengths are those of the model's own greedy answers in the chat format, computed through the slot scheduler.
Prompts and lengths are kept in a folder, because they take longer than the other preparations of a run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import bundled_prompts
from python_backends.engine.protocol import Engine
from python_backends.nouns.request import Ids, Request


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One prompt. `given` is the user's input, `instruction` the application's text about it."""

    task: str
    instruction: str
    given: str
    prompt: Ids  # [prompt]
    num_given_tokens: int

    def request(self, request_id: int, max_tokens: int) -> Request:
        return bundled_prompts.greedy_request(request_id, self.prompt, max_tokens)


def asks(count: int, max_prompt_tokens: int, cache: Path) -> list[Ask]:
    """Returns `count` different prompts of the tasks in turn, none longer than `max_prompt_tokens`. A larger
    `count` gives the same prompts first.
    """
    path = cache / f"asks_{max_prompt_tokens}_{bundled_prompts.sources()}.json"
    drawn = json.loads(path.read_text()) if path.exists() else []
    if len(drawn) < count:
        drawn = _draw(count, max_prompt_tokens)
        cache.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(drawn))
    return [
        Ask(task, instruction, text, np.array(prompt, np.int32), given)
        for task, instruction, text, prompt, given in drawn[:count]
    ]


def _draw(count: int, max_prompt_tokens: int) -> list[tuple[str, str, str, list[int], int]]:
    """Returns task, instruction, input, tokens of the prompt, and number of tokens of the input, for each
    prompt.
    """
    wanted = -(-count // bundled_prompts.NUM_TASKS)
    drawn: list[list[tuple[str, str, str, list[int], int]]] = [[] for _ in range(wanted)]
    rows: dict[str, Iterator[list[Any]]] = defaultdict(lambda: iter(drawn))  # of each task
    for task, exercise, prompt, given in bundled_prompts.draw_prompts(wanted + wanted // 5 + 8):
        if len(prompt) <= max_prompt_tokens and (row := next(rows[task], None)) is not None:
            row.append((task, exercise.instruction, exercise.given, prompt, given))
    return [each for row in drawn for each in row][:count]


def answer_lengths(asked: list[Ask], engine: Engine, max_tokens: int, cache: Path) -> NDArray[np.int64]:
    """Returns [asked] numbers of tokens of the answers, including the end. `asked` are the first of all
    requests.
    """
    name = f"answer_lengths_{max_tokens}_{engine.limits.fingerprint}_{bundled_prompts.sources()}.npy"
    path = cache / name
    lengths: NDArray[np.int64] = np.load(path) if path.exists() else np.zeros(0, np.int64)
    if len(lengths) < len(asked):
        lengths = bundled_prompts.answer_lengths([ask.prompt for ask in asked], engine, max_tokens)
        np.save(path, lengths)
    return lengths[: len(asked)]
