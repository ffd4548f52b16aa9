"""Held-out prompts of the bundled model's eight tasks in the chat format, and the lengths of its answers.

Used by `agreement.py`, `magnus/requests.py` and `scheduling/requests.py`.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from python_backends.engine.protocol import Engine
from python_backends.nouns.request import Ids, Request, Sampling
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import ROOT

if TYPE_CHECKING:
    from models.recipe.tasks import Exercise

MODEL = ROOT / "models" / "bundled"
MADE_FROM = (ROOT / "models" / "recipe", MODEL)  # prompts and answers; and of the sources of this Python
END = 0  # the model's end of an answer
NUM_TASKS = 8
TOKEN_BUDGET = 512


class Drawn(NamedTuple):
    """One prompt. `num_given_tokens` counts the user's input, without the instruction and the template."""

    task: str
    exercise: Exercise
    prompt: list[int]
    num_given_tokens: int


def sources() -> str:
    """Returns a short hash of what prompts and answers are made from, for the names of files with them."""
    digest = hashlib.sha256(platform.python_version().encode())
    for folder in MADE_FROM:
        for path in sorted(each for each in folder.iterdir() if each.is_file()):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def draw_prompts(count: int) -> Iterator[Drawn]:
    """Yields `count` prompts of every task, one task after the other; the same ones every time."""
    from transformers import AutoTokenizer

    from models.recipe.corpus import load_corpora
    from models.recipe.evaluation import draw
    from models.recipe.tasks import all_tasks
    from models.recipe.velin import read_lexicon

    tokenizer, (_, held_out) = AutoTokenizer.from_pretrained(MODEL), load_corpora()
    for task in tqdm(all_tasks(read_lexicon(MODEL)), desc="prompts", unit="task", disable=None):
        for exercise in draw(task, held_out, count):
            chat = [{"role": "user", "content": exercise.prompt}]
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            prompt, given = (
                tokenizer.encode(each, add_special_tokens=False) for each in (text, exercise.given)
            )
            yield Drawn(task.name, exercise, prompt, len(given))


def greedy_request(number: int, prompt: Ids, max_tokens: int) -> Request:
    return Request(number, prompt, Sampling(max_tokens=max_tokens, stop_ids=(END,)))


def answer_lengths(prompts: Sequence[Ids], engine: Engine, max_tokens: int) -> NDArray[np.int64]:
    """Returns [prompts] numbers of tokens of the model's greedy answers, including the end."""
    scheduler, lengths = SlotScheduler(engine.limits, TOKEN_BUDGET), np.zeros(len(prompts), np.int64)
    for number, prompt in enumerate(prompts):
        scheduler.submit(greedy_request(number, prompt, max_tokens), np.zeros(0, np.int32))
    with tqdm(total=len(prompts), desc="answers", unit="answer", disable=None) as bar:
        while (plan := scheduler.plan()) is not None:
            engine.launch(plan)
            events = scheduler.apply(plan, engine.collect())
            np.add.at(lengths, events.request_ids, 1)
            bar.update(int(np.count_nonzero(events.finishes)))
    return lengths
