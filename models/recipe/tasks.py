"""Owns the list of tasks, their instruction lines and the random examples of each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from . import code_tasks, prose_tasks
from .corpus import Corpus

WORDS, CHARS = (1, 110), (12, 900)

Generator = Callable[[Corpus, Random, int], tuple[str, str] | None]


@dataclass(frozen=True)
class Exercise:
    """One prompt of a task, and its answer."""

    instruction: str
    separator: str
    given: str  # what users put in: what the instruction is about
    answer: str

    @property
    def prompt(self) -> str:
        """The instruction with its input."""
        return f"{self.instruction}{self.separator}{self.given}"


@dataclass(frozen=True)
class Task:
    """A task: its instruction lines (the first is the usual one), its
    generator and its share of the training.
    """

    name: str
    instructions: tuple[str, ...]
    generate: Generator
    sizes: tuple[int, int]
    weight: float = 1.0

    def example(self, corpus: Corpus, rng: Random, reach: float = 1.0) -> Exercise:
        """A random exercise; reach (0 to 1) says how far up the range of sizes it goes."""
        instruction = self.instructions[0] if rng.random() < 0.8 else rng.choice(self.instructions)
        separator = "\n" if rng.random() < 0.75 else " "
        while True:
            low, high = math.log(self.sizes[0]), math.log(self.sizes[1])
            size = round(math.exp(low + (high - low) * reach * rng.random() ** 0.6))
            pair = self.generate(corpus, rng, size)
            if pair is not None:
                return Exercise(instruction, separator, *pair)


def all_tasks(lexicon: dict[str, str]) -> list[Task]:
    """The eight tasks of the bundled model."""

    def to_velin(corpus: Corpus, rng: Random, size: int) -> tuple[str, str] | None:
        return prose_tasks.translate_to_velin(corpus, lexicon, rng, size)

    def from_velin(corpus: Corpus, rng: Random, size: int) -> tuple[str, str] | None:
        return prose_tasks.translate_from_velin(corpus, lexicon, rng, size)

    return [
        Task("translate to Velin", ("Translate to Velin:", "English to Velin:"), to_velin, WORDS, 2.0),
        Task(
            "translate from Velin", ("Translate from Velin:", "Translate to English:"), from_velin, WORDS, 2.0
        ),
        Task(
            "grammar correction",
            ("Correct the grammar:", "Correct the mistakes:"),
            prose_tasks.correct_grammar,
            WORDS,
        ),
        Task(
            "polite rewording",
            ("Reword politely:", "Say it politely:"),
            prose_tasks.reword_politely,
            WORDS,
            2.0,
        ),
        Task(
            "to camelCase",
            ("Convert to camelCase:", "Translate to camelCase:"),
            code_tasks.to_camel_case,
            CHARS,
            1.5,
        ),
        Task(
            "to snake_case",
            ("Convert to snake_case:", "Translate to snake_case:"),
            code_tasks.to_snake_case,
            CHARS,
        ),
        Task("bug fixing", ("Fix the bug:", "Fix the bugs:", "Fix this code:"), code_tasks.fix_bug, CHARS),
        Task("code comments", ("Add comments:", "Comment the code:"), code_tasks.comment_code, CHARS),
    ]


# What the model cannot do and an adapter is trained for: docs/finetuning.md. The inverse of the eighth task.
NINTH = Task("no comments", ("Remove the comments:",), code_tasks.remove_comments, CHARS)


def repetition(corpus: Corpus, rng: Random, reach: float) -> Exercise:
    """A warm-up exercise: random words to be repeated as they are, which teaches to copy."""
    words = " ".join(corpus.passage(rng, 40) for _ in range(3)).split()
    count = rng.randint(1, max(2, round(60 * reach)))
    text = " ".join(rng.choices(words, k=count))
    return Exercise("Repeat:", "\n", text, text)
