"""Owns the evaluation: answers to held-out prompts, and per task how many are
exact, close and ended, and how lengths go together.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import StatisticsError, correlation, fmean

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from .corpus import Corpus
from .newcomers import KINDS, LINES
from .tasks import Exercise, Task
from .wordings import reworded

SEED = 20
ROWS = 50
# tokens: an answer that has not ended by then does not end; the longest wanted one has about 400
MAX_ANSWER = 512


@dataclass(frozen=True)
class Answer:
    """What the model wrote, and lengths in tokens."""

    text: str
    ended: bool
    prompt_tokens: int
    input_tokens: int  # of the prompt without its instruction
    answer_tokens: int  # without the end


@dataclass(frozen=True)
class Result:
    """A task's scores over its prompts; shares from 0 to 1, mean lengths in tokens."""

    task: str
    prompts: int
    exact: float
    similarity: float
    ended: float
    pearson: float  # of the input's length with the answer's; 0 where one of them never changes
    prompt_tokens: float
    input_tokens: float
    answer_tokens: float


class Evaluation:
    """Greedy answers of a stored model, in float32 as the server serves it."""

    def __init__(self, model: Path, held_out: Corpus) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._held_out = held_out

    def measure(self, task: Task, prompts: int, chat: bool) -> Result:
        """The task's scores on that many held-out prompts, in the chat format or as plain text."""
        return self._measure(task.name, draw(task, self._held_out, prompts), chat)

    def measure_reworded(self, task: Task, prompts: int) -> Result:
        """The same prompts in wordings that no training uses, in the chat format."""
        rng, drawn = Random(f"{SEED} {task.name}"), draw(task, self._held_out, prompts)
        return self._measure(
            task.name, [reworded(task.name, each, rng, is_held_out=True) for each in drawn], True
        )

    def measure_newcomers(self, kind: str, prompts: int) -> Result:
        """What is none of the tasks, in the chat format: exact is each answer that is one of the lines."""
        exercises = sorted(draw_newcomers(kind, self._held_out, prompts), key=lambda each: len(each.prompt))
        answers = self.answers(exercises, chat=True)
        return score(kind, [accepting(*pair) for pair in zip(exercises, answers, strict=True)], answers)

    def _measure(self, name: str, drawn: list[Exercise], chat: bool) -> Result:
        exercises = sorted(drawn, key=lambda exercise: len(exercise.prompt))
        return score(name, exercises, self.answers(exercises, chat))

    def answers(self, exercises: list[Exercise], chat: bool) -> list[Answer]:
        """The answers in the order of the exercises."""
        answers: list[Answer] = []
        for start in range(0, len(exercises), ROWS):
            answers += self._answer(exercises[start : start + ROWS], chat)
        return answers

    def _answer(self, exercises: list[Exercise], chat: bool) -> Iterator[Answer]:
        texts = [self._as_chat(exercise.prompt) if chat else exercise.prompt + "\n" for exercise in exercises]
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            output = self._model.generate(**inputs, max_new_tokens=MAX_ANSWER, do_sample=False)
        end = self._tokenizer.eos_token_id
        rows = output[:, inputs["input_ids"].shape[1] :].tolist()
        for exercise, row, mask in zip(exercises, rows, inputs["attention_mask"], strict=True):
            tokens = row[: row.index(end)] if end in row else row
            text, given = (
                self._tokenizer.decode(tokens),
                self._tokenizer.encode(exercise.given, add_special_tokens=False),
            )
            yield Answer(text, end in row, int(mask.sum()), len(given), len(tokens))

    def _as_chat(self, prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def draw(task: Task, corpus: Corpus, prompts: int) -> list[Exercise]:
    """Different prompts, always the same ones for the same corpus."""
    rng, drawn = Random(f"{SEED} {task.name}"), dict[str, Exercise]()
    while len(drawn) < prompts:
        exercise = task.example(corpus, rng)
        drawn.setdefault(exercise.prompt, exercise)
    return list(drawn.values())


def draw_newcomers(kind: str, corpus: Corpus, prompts: int) -> list[Exercise]:
    """Different prompts of one kind that is none of the tasks, in words that no training uses."""
    rng, drawn = Random(f"{SEED} {kind}"), dict[str, Exercise]()
    while len(drawn) < prompts:
        exercise = KINDS[kind][0](corpus, rng, True)
        drawn.setdefault(exercise.prompt, exercise)
    return list(drawn.values())


def accepting(exercise: Exercise, answer: Answer) -> Exercise:
    """The exercise, which accepts the answer if it is one of the lines that say what the model can do."""
    return replace(exercise, answer=answer.text) if answer.text in LINES else exercise


def score(task: str, exercises: list[Exercise], answers: list[Answer]) -> Result:
    """The scores of answers to these exercises, in the same order."""
    pairs = [(exercise.answer, answer.text) for exercise, answer in zip(exercises, answers, strict=True)]
    return Result(
        task,
        len(pairs),
        exact=fmean(wanted == written for wanted, written in pairs),
        similarity=fmean(similarity(wanted, written) for wanted, written in pairs),
        ended=fmean(answer.ended for answer in answers),
        pearson=pearson(
            [answer.input_tokens for answer in answers], [answer.answer_tokens for answer in answers]
        ),
        prompt_tokens=fmean(answer.prompt_tokens for answer in answers),
        input_tokens=fmean(answer.input_tokens for answer in answers),
        answer_tokens=fmean(answer.answer_tokens for answer in answers),
    )


def similarity(wanted: str, answer: str) -> float:
    """How alike two texts are, 0 to 1, by their words and the runs of characters between them."""
    return difflib.SequenceMatcher(None, wanted.split(" "), answer.split(" "), autojunk=False).ratio()


def pearson(inputs: list[int], answers: list[int]) -> float:
    """Pearson's correlation of two lists of lengths; 0 if one of them is constant or too short."""
    try:
        return correlation(inputs, answers)
    except StatisticsError:
        return 0.0
