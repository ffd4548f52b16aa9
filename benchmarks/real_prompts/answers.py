"""The file of answers' lengths that belongs to the prompts and one model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.real_prompts.prompts import Prompt

SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Question:
    number: int  # of the prompt
    prompt: Prompt
    seed: int


class Answers:
    """`lengths[prompt][seed]`: tokens; negative where the answer was cut at the most; None: not asked yet."""

    def __init__(self, path: Path | None, about: dict[str, Any], num_prompts: int) -> None:
        """Reads the file at `path` if there is one: only what it lacks is asked. Raises ValueError if it is
        about something else than `about`.
        """
        self._path, self._about = path, about
        self.lengths: list[list[int | None]] = [[None] * len(SEEDS) for _ in range(num_prompts)]
        if path is not None and path.is_file():
            kept = json.loads(path.read_text("utf-8"))
            different = [name for name, value in about.items() if kept.get(name) != value]
            if different:
                raise ValueError(f"{path}: {', '.join(different)} is another one: move the file away")
            self.lengths = kept["lengths"]

    def missing(self, prompts: Sequence[Prompt]) -> Iterator[Question]:
        for place, seed in enumerate(SEEDS):
            for number, prompt in enumerate(prompts):
                if self.lengths[number][place] is None:
                    yield Question(number, prompt, seed)

    def note(self, question: Question, length: int, ended: bool) -> None:
        self.lengths[question.number][SEEDS.index(question.seed)] = length if ended else -length

    def save(self) -> None:
        """Whole or not at all: one line for each prompt."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        head = json.dumps(self._about, ensure_ascii=False)[1:-1]
        rows = ",\n".join(json.dumps(row) for row in self.lengths)
        whole = self._path.with_suffix(".new")
        whole.write_text(f'{{{head}, "lengths": [\n{rows}\n]}}\n', "utf-8")
        whole.replace(self._path)
