"""Owns the stream of training examples: token ids with a loss mask,
packed into batches of one length each.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from .corpus import Corpus
from .newcomers import newcomer
from .tasks import Exercise, Task, repetition
from .tokenizer import ASSISTANT, END, PAD, SYSTEM, USER
from .wordings import quoted, reworded, usual

LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
TOKENS_PER_BATCH = 2048
IGNORED = -100
# shares of the exercises: of those that are none of the tasks, of short inputs, of other wordings, of quotes
NEWCOMERS, SHORT, REWORDED, USUAL, QUOTED = 0.15, 0.22, 0.4, 0.15, 0.04
SYSTEM_TEXTS = (
    "You are a helpful assistant.",
    "You are a friendly assistant. Answer in short sentences.",
    "Be brief.",
    "You are a chatbot.",
)

Example = tuple[list[int], list[bool]]


@dataclass
class Batch:
    """Right-padded rows of token ids, and as labels the next tokens to learn (IGNORED elsewhere)."""

    ids: torch.Tensor
    labels: torch.Tensor


class ExampleStream:
    """An endless stream of batches that depends on the seed and the
    given progress alone, and can be resumed.
    """

    def __init__(
        self,
        corpus: Corpus,
        tasks: list[Task],
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
        short_tasks: list[Task] | None = None,
        least_progress: float = 0.0,
    ) -> None:
        self._corpus, self._tasks, self._tokenizer = corpus, tasks, tokenizer
        self._short_tasks, self._least_progress = short_tasks or [], least_progress
        self._rng = Random(seed)
        self._waiting: dict[int, list[Example]] = {length: [] for length in LENGTHS}
        self._special = {
            token: tokenizer.convert_tokens_to_ids(token) for token in (SYSTEM, USER, ASSISTANT, END, PAD)
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the stream."""
        return {"random": self._rng.getstate(), "waiting": self._waiting}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where the stream with that state was."""
        self._rng.setstate(state["random"])
        self._waiting = state["waiting"]

    def next_batch(self, progress: float) -> Batch:
        """The next batch; progress (0 to 1) of the training sets the mixture and the lengths."""
        while True:
            ids, mask = self._example(max(progress, self._least_progress))
            fitting = [length for length in LENGTHS if length >= len(ids)]
            if not fitting:
                continue
            waiting = self._waiting[fitting[0]]
            waiting.append((ids, mask))
            if len(waiting) == TOKENS_PER_BATCH // fitting[0]:
                self._waiting[fitting[0]] = []
                return self._batch(waiting, fitting[0])

    def _batch(self, rows: list[Example], length: int) -> Batch:
        ids = torch.full((len(rows), length), self._special[PAD])
        labels = torch.full((len(rows), length), IGNORED)
        for row, (tokens, learn) in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, : len(tokens) - 1] = torch.tensor(
                [token if wanted else IGNORED for token, wanted in zip(tokens[1:], learn[1:], strict=True)]
            )
        return Batch(ids, labels)

    def _example(self, progress: float) -> Example:
        reach = min(1.0, 0.35 + 2.5 * progress)
        draw = self._rng.random()
        if draw < (0.12 if progress < 0.15 else 0.03):
            return self._plain_text()
        if draw < (0.27 if progress < 0.1 else 0.05):
            return self._chat([repetition(self._corpus, self._rng, reach)])
        turns = [self._exercise(reach)]
        if self._rng.random() < 0.3:
            return self._instruction(turns[0])
        while progress > 0.1 and len(turns) < 4 and self._rng.random() < 0.2:
            turns.append(self._exercise(reach))
        return self._chat(turns)

    def _exercise(self, reach: float) -> Exercise:
        draw = self._rng.random()
        if self._short_tasks and draw < NEWCOMERS:
            return newcomer(self._corpus, self._rng)
        short = self._short_tasks and draw < NEWCOMERS + SHORT
        tasks = self._short_tasks if short else self._tasks
        task = self._rng.choices(tasks, [task.weight for task in tasks])[0]
        exercise = task.example(self._corpus, self._rng, reach)
        return self._as_asked(task, exercise) if self._short_tasks else exercise

    def _as_asked(self, task: Task, exercise: Exercise) -> Exercise:
        """In one of the task's wordings, or with its own instruction line."""
        draw = self._rng.random()
        if draw < REWORDED:
            return reworded(task.name, exercise, self._rng)
        if draw < REWORDED + USUAL:
            return usual(exercise, self._rng)
        return quoted(exercise, self._rng) if draw < REWORDED + USUAL + QUOTED else exercise

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _plain_text(self) -> Example:
        """Ordinary text or code, every token of which is learned."""
        code = self._rng.random() < 0.7
        text = self._rng.choice(self._corpus.functions)[0] if code else self._corpus.passage(self._rng, 80)
        ids = [*self._encode(text), self._special[END]]
        return ids, [True] * len(ids)

    def _instruction(self, exercise: Exercise) -> Example:
        """The plain format: the prompt as it is, nearly always with a
        line break at its end, then the answer.
        """
        before = self._encode(exercise.prompt + ("\n" if self._rng.random() < 0.9 else ""))
        after = [*self._encode(exercise.answer), self._special[END]]
        return before + after, [False] * len(before) + [True] * len(after)

    def _system_text(self) -> str:
        if self._short_tasks and self._rng.random() < 0.3:
            return self._rng.choice(SYSTEM_TEXTS)
        return self._corpus.passage(self._rng, 60)

    def _chat(self, turns: list[Exercise]) -> Example:
        ids: list[int] = []
        if self._rng.random() < 0.15:
            ids += [self._special[SYSTEM], *self._encode(self._system_text()), self._special[END]]
        learn = [False] * len(ids)
        for turn in turns:
            prompt = turn.prompt + ("\n" if self._rng.random() < 0.15 else "")
            before = [
                self._special[USER],
                *self._encode(prompt),
                self._special[END],
                self._special[ASSISTANT],
            ]
            after = [*self._encode(turn.answer), self._special[END]]
            ids += before + after
            learn += [False] * len(before) + [True] * len(after)
        return ids, learn
