"""What `magnus.py` asks: held-out prompts of the bundled model's eight tasks, and how long its answers to some of them are.

Lengths come from answers that the model really gives, greedily and in the chat format, through the slot scheduler. Prompts and lengths
are kept in a folder, because they take longer than the rest of a run's preparation.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from python_backends.config import ROOT
from python_backends.engine.protocol import Engine
from python_backends.request import Ids, Request, Sampling
from python_backends.scheduling.scheduler import SlotScheduler

MODEL = ROOT / "models" / "bundled"
END = 0  # the model's end of an answer
TOKEN_BUDGET = 512


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One prompt. `given` is what a user puts in, `instruction` what the application says of it."""

    task: str
    instruction: str
    given: str
    prompt: Ids  # [prompt]
    num_given_tokens: int

    def request(self, request_id: int, max_tokens: int) -> Request:
        return Request(request_id, self.prompt, Sampling(max_tokens=max_tokens, stop_ids=(END,)))


def asks(count: int, max_prompt_tokens: int, cache: Path) -> list[Ask]:
    """`count` different prompts, the tasks in turn, none longer than `max_prompt_tokens`; more of them begin with the same ones."""
    path = cache / f"asks_{max_prompt_tokens}_{sources()}.json"
    drawn = json.loads(path.read_text()) if path.exists() else []
    if len(drawn) < count:
        drawn = _draw(count, max_prompt_tokens)
        cache.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(drawn))
    return [Ask(task, instruction, text, np.array(prompt, np.int32), given) for task, instruction, text, prompt, given in drawn[:count]]


def sources() -> str:
    """What the prompts come from, in a few digits."""
    digest = hashlib.sha256(platform.python_version().encode())
    for path in sorted((ROOT / "build" / "bundled").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def _draw(count: int, max_prompt_tokens: int) -> list[tuple[str, str, str, list[int], int]]:
    """Task, instruction, input, tokens of the prompt, number of tokens of the input."""
    from bundled.corpus import load_corpora
    from bundled.evaluation import draw
    from bundled.tasks import all_tasks
    from bundled.velin import read_lexicon
    from transformers import AutoTokenizer

    tokenizer, (_, held_out) = AutoTokenizer.from_pretrained(MODEL), load_corpora()
    tasks = all_tasks(read_lexicon(MODEL))
    wanted = -(-count // len(tasks))
    drawn: list[list[tuple[str, str, str, list[int], int]]] = [[] for _ in range(wanted)]
    for task in tqdm(tasks, desc="prompts", unit="task", disable=None):
        rows = iter(drawn)
        for exercise in draw(task, held_out, wanted + wanted // 5 + 8):
            chat = [{"role": "user", "content": exercise.prompt}]
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            prompt, given = tokenizer.encode(text, add_special_tokens=False), tokenizer.encode(exercise.given, add_special_tokens=False)
            if len(prompt) <= max_prompt_tokens and (row := next(rows, None)) is not None:
                row.append((task.name, exercise.instruction, exercise.given, prompt, len(given)))
    return [each for row in drawn for each in row][:count]


def answer_lengths(asked: list[Ask], engine: Engine, max_tokens: int, cache: Path) -> NDArray[np.int64]:
    """[asked] tokens of each answer, its end among them; `asked` are the first of all asks."""
    path = cache / f"answer_lengths_{max_tokens}_{engine.limits.fingerprint}_{sources()}.npy"
    lengths: NDArray[np.int64] = np.load(path) if path.exists() else np.zeros(0, np.int64)
    if len(lengths) < len(asked):
        lengths = _answer(asked, engine, max_tokens)
        np.save(path, lengths)
    return lengths[: len(asked)]


def _answer(asked: list[Ask], engine: Engine, max_tokens: int) -> NDArray[np.int64]:
    scheduler = SlotScheduler(engine.limits, TOKEN_BUDGET)
    for place, ask in enumerate(asked):
        scheduler.submit(ask.request(place, max_tokens), np.zeros(0, np.int32))
    lengths = np.zeros(len(asked), np.int64)
    with tqdm(total=len(asked), desc="answers to learn from", unit="answer", disable=None) as bar:
        while (plan := scheduler.plan()) is not None:
            engine.launch(plan)
            events = scheduler.apply(plan, engine.collect())
            np.add.at(lengths, events.request_ids, 1)
            bar.update(int(np.count_nonzero(events.finishes)))
    return lengths
