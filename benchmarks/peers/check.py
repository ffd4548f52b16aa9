"""Checks that all engines compute the same: compares greedy answers of the bundled model before `peers`
measures anything.

The reference is transformers' `generate`, one request at a time, in float32. The other engines get all
requests at the same time. In float32 every answer must be the same, token by token up to its end (for engines
that return text: the same text). In bfloat16, rounding differs, and so tokens may: the number of equal
answers is shown, and no engine is refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.work import Job, Timing, Work, same_tokens
from benchmarks.peers.process import EngineProcess, prepare_model
from benchmarks.peers.setups import QUANTISED, SETUPS, Setup
from python_backends.settings import ROOT

MODEL = ROOT / "models" / "bundled"
REFERENCE = "transformers"
MAX_TOKENS = 64
PROMPTS = (
    "Convert to camelCase: read_all_lines",
    "Convert to camelCase:\ndef next_free_slot(self):\n    return self.free_slots.pop()",
    "Convert to snake_case: writeNextBlock",
    "Convert to snake_case:\ndef setTimeLimit(limit, isHard):\n    self.timeLimit = limit",
    "Fix the bug:\ndef size(self)\n    return len(self.items)",
    "Fix the bug: def add(a, b): return a - b",
    "Comment the code: def is_empty(self):\n    return not self.items",
    "Add comments: def close(self):\n    self.file.close()\n    self.open = False",
    "Correct the grammar: He go to school every days.",
    "Correct the grammar:\nThe results was wrote into the file.",
    "Reword politely: Send me the report now.",
    "Reword politely:\nThis is wrong, do it again.",
    "Translate to Velin:\nThe server answers every request.",
    "Translate to Velin: A library that reads text files.",
    "Translate from Velin:\nNuvil joso mako.",
    "Translate from Velin: Fokush vash nilo.",
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many of an engine's answers are the reference's, and how many tokens before the first different
    one.

    `tokens` is None for an engine that returns text.
    """

    engine: str
    dtype: str
    same_answers: int
    answers: int
    same_tokens: int | None
    all_tokens: int
    must_agree: bool

    @property
    def is_refused(self) -> bool:
        return self.must_agree and self.same_answers < self.answers

    def __str__(self) -> str:
        return (
            f"{self.engine}, {self.dtype}: {self.same_answers} of {self.answers} answers are the reference's"
        )


class SameTokens:
    """The comparison of all engines. `directory` gets copies of the model and the engines' conversions of
    them.
    """

    def __init__(self, directory: Path) -> None:
        from transformers import AutoTokenizer

        self._directory = directory
        self._tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
        self._work = Work([self._job(prompt) for prompt in PROMPTS], len(PROMPTS))
        one_at_a_time = Work(self._work.jobs, 1)
        self._reference = [
            self._until_end(timing.ids)
            for timing in self._timings(SETUPS[REFERENCE], "float32", one_at_a_time)
        ]

    def compare(self, setup: Setup, dtype: str) -> Agreement:
        """Compares one engine. Raises what EngineProcess and its environment raise."""
        timings = self._timings(setup, dtype, self._work)
        pairs = list(zip(self._reference, timings, strict=True))
        texts = any(timing.text for timing in timings)
        exact = dtype == "float32" and setup.name not in QUANTISED
        return Agreement(
            engine=setup.name,
            dtype=dtype,
            same_answers=sum(self._is_same(reference, timing) for reference, timing in pairs),
            answers=len(pairs),
            same_tokens=None
            if texts
            else sum(same_tokens(reference, timing.ids) for reference, timing in pairs),
            all_tokens=sum(map(len, self._reference)),
            must_agree=exact,
        )

    def _job(self, prompt: str) -> Job:
        messages = [{"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return Job(self._tokenizer.encode(text, add_special_tokens=False), MAX_TOKENS, json.dumps(messages))

    def _timings(self, setup: Setup, dtype: str, work: Work) -> list[Timing]:
        folder = self._directory / dtype
        if not folder.exists():
            shutil.copytree(MODEL, folder)
        prepare_model(setup, folder)
        process = EngineProcess(setup, folder, dtype, work)
        try:
            return process.run(work)[0]
        finally:
            process.close()

    def _until_end(self, ids: Sequence[int]) -> list[int]:
        """Returns the tokens up to and including the end of the answer, if it is there."""
        end = self._tokenizer.eos_token_id
        return list(ids[: ids.index(end) + 1]) if end in ids else list(ids)

    def _is_same(self, reference: Sequence[int], timing: Timing) -> bool:
        if timing.text:
            return bool(self._tokenizer.decode(reference, skip_special_tokens=True) == timing.text)
        return list(reference) == timing.ids[: len(reference)]


def as_rows(agreements: Iterable[Agreement]) -> list[dict[str, Any]]:
    return [asdict(agreement) for agreement in agreements]
