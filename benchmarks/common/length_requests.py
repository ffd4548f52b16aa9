"""Requests with the lengths of their answers, for measuring predictors: the bundled model's eight tasks,
whose right answers are known.

A length is that of the task's correct answer, in the model's tokens, with the end: the model gives this
answer in nine of ten cases, and thousands of them take a minute instead of hours. Used by `lengths.py` and
`drift.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from benchmarks import ROOT
from models.recipe.corpus import Corpus, load_corpora
from models.recipe.tasks import Exercise, all_tasks
from models.recipe.velin import read_lexicon
from python_backends.nouns.request import Floats, Subject
from python_backends.prediction.encoder import Encoder
from python_backends.prediction.features import features
from python_backends.prediction.forest import Observations
from python_backends.prediction.request_log import instruction_id
from python_backends.text.door.subject import MAX_READ_CHARS, of_text

MODEL = ROOT / "models/bundled"
BATCH = 64
MAX_TOKENS = 1024  # of an answer: none has as many


@dataclass(frozen=True, slots=True)
class Asked:
    task: str
    subject: Subject
    length: int  # of the answer, in tokens, with its end


def draw(tasks: Sequence[str], count: int, rng: Random, held_out: bool) -> list[Asked]:
    """Returns `count` requests of these tasks in random order. Held-out ones have no sentence and no function
    in common with the others.
    """
    corpus, tokenizer = _corpora()[held_out], Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    known = [task for task in all_tasks(read_lexicon(MODEL)) if task.name in tasks]
    return [_asked(task.name, task.example(corpus, rng), tokenizer) for task in rng.choices(known, k=count)]


@cache
def _corpora() -> tuple[Corpus, Corpus]:
    return load_corpora()


@cache
def task_names() -> list[str]:
    return [task.name for task in all_tasks(read_lexicon(MODEL))]


def _asked(task: str, exercise: Exercise, tokenizer: Tokenizer) -> Asked:
    instruction, given = of_text(exercise.prompt)
    counts = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in (given, exercise.answer)]
    return Asked(task, Subject(instruction, given[:MAX_READ_CHARS], counts[0], MAX_TOKENS), counts[1] + 1)


class Remembered:
    """An encoder whose texts are known before: it encodes each once, many at the same time."""

    def __init__(self, encoder: Encoder, requests: Sequence[Asked]) -> None:
        self.name = encoder.name
        texts = sorted(
            {text for asked in requests for text in (asked.subject.instruction, asked.subject.user_input)},
            key=len,
        )
        self._known: dict[str, Floats] = {}
        for start in tqdm(range(0, len(texts), BATCH), desc="encoding", unit="batch"):
            part = texts[start : start + BATCH]
            self._known.update(zip(part, encoder.encode(part), strict=True))

    def encode(self, texts: Sequence[str]) -> Floats:
        return np.stack([self._known[text] for text in texts])


def features_of(requests: Sequence[Asked], encoder: Encoder) -> Floats:
    subjects = [asked.subject for asked in requests]
    instructions = encoder.encode([subject.instruction for subject in subjects])
    inputs = encoder.encode([subject.user_input for subject in subjects])
    return features(instructions, inputs, np.array([subject.num_input_tokens for subject in subjects]))


def observations(requests: Sequence[Asked], encoder: Encoder) -> Observations:
    lengths = np.array([asked.length for asked in requests], np.float32)
    ids = np.array([instruction_id(asked.subject.instruction) for asked in requests], np.uint64)
    ones = np.ones(len(requests))
    return Observations(features_of(requests, encoder), lengths, ones.astype(bool), ids, ones)
