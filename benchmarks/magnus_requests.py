"""What `magnus.py` asks: held-out prompts of the bundled model's eight tasks, and how long its answers to some of them are.

Lengths come from answers that the model really gives, greedily and in the chat format, through the slot scheduler; they are kept in a
folder, because they take longer than the rest of a run's preparation.
"""

from __future__ import annotations

import hashlib
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

    number: int
    task: str
    instruction: str
    given: str
    prompt: Ids  # [prompt]
    num_given_tokens: int

    def request(self, max_tokens: int) -> Request:
        return Request(self.number, self.prompt, Sampling(max_tokens=max_tokens, stop_ids=(END,)))


def draw_asks(count: int, max_prompt_tokens: int) -> list[Ask]:
    """`count` different prompts, the tasks in turn, none longer than `max_prompt_tokens`."""
    from bundled.corpus import load_corpora
    from bundled.evaluation import draw
    from bundled.tasks import all_tasks
    from bundled.velin import read_lexicon
    from transformers import AutoTokenizer

    tokenizer, (_, held_out) = AutoTokenizer.from_pretrained(MODEL), load_corpora()
    tasks = all_tasks(read_lexicon(MODEL))
    wanted = -(-count // len(tasks))
    asks: dict[str, list[Ask]] = {task.name: [] for task in tasks}
    for place, task in enumerate(tasks):
        for exercise in draw(task, held_out, wanted + wanted // 5 + 8):
            chat = [{"role": "user", "content": exercise.prompt}]
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            prompt = np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)
            given = len(tokenizer.encode(exercise.given, add_special_tokens=False))
            if len(prompt) <= max_prompt_tokens and len(asks[task.name]) < wanted:
                number = len(asks[task.name]) * len(tasks) + place
                asks[task.name].append(Ask(number, task.name, exercise.instruction, exercise.given, prompt, given))
    return sorted((ask for drawn in asks.values() for ask in drawn), key=lambda ask: ask.number)[:count]


def answer_lengths(asks: list[Ask], engine: Engine, max_tokens: int, cache: Path) -> NDArray[np.int64]:
    """[asks] tokens of each answer, its end among them; from `cache` where they have been measured before."""
    digest = hashlib.sha256(f"{engine.limits.fingerprint} {max_tokens} {platform.python_version()}".encode())
    for ask in asks:
        digest.update(ask.prompt.tobytes())
    path = cache / f"answer_lengths_{digest.hexdigest()[:16]}.npy"
    if path.exists():
        known: NDArray[np.int64] = np.load(path)
        return known
    lengths = _answer(asks, engine, max_tokens)
    cache.mkdir(parents=True, exist_ok=True)
    np.save(path, lengths)
    return lengths


def _answer(asks: list[Ask], engine: Engine, max_tokens: int) -> NDArray[np.int64]:
    scheduler = SlotScheduler(engine.limits, TOKEN_BUDGET)
    places = {ask.number: place for place, ask in enumerate(asks)}
    for ask in asks:
        scheduler.submit(ask.request(max_tokens), np.zeros(0, np.int32))
    lengths = np.zeros(len(asks), np.int64)
    with tqdm(total=len(asks), desc="answers to learn from", unit="answer") as bar:
        while (plan := scheduler.plan()) is not None:
            engine.launch(plan)
            events = scheduler.apply(plan, engine.collect())
            np.add.at(lengths, [places[number] for number in events.request_ids.tolist()], 1)
            bar.update(int(np.count_nonzero(events.finishes)))
    return lengths
