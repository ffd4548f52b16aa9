"""Measures how long a step takes with a model's weights kept in different ways, by the engine alone.

    python -m benchmarks.weight_formats --json benchmarks/results/weight_formats.json

The model is a GGUF file. `float32` and `bfloat16`: all of its numbers in that type. `own bits in …`: the same
with few bits where the file has few, and the processor's layers keep them in that type; all tokens must be
those without. `int8` and `int4`: `model.weights` in bfloat16. All of them are in one process, whose rounds
begin with another one each time. A step has 1, 2, 4 or 16 rows, with beginnings of the prompts of
`real_prompts`; or it is a prompt of 256 tokens, of such texts one after the other. Milliseconds: the median
of the rounds, the least and the most; a prompt's time is the least of three in its round. `of_float32` is the
median of the rounds' ratios.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.real_prompts.prompts import read_prompts
from benchmarks.results_file import table, write_result
from commands.model import located
from python_backends.checkpoint.opening import open_source
from python_backends.engine.choice import choose
from python_backends.instance.build import build
from python_backends.linux.large_pages import with_large_pages
from python_backends.nouns.request import Ids, Request, Sampling
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import EngineSettings, ModelSettings, Settings

PLAIN = "float32"
OWN = {f"own bits in {dtype}": dtype for dtype in (PLAIN, "bfloat16")}
KINDS = {  # dtype and weights
    PLAIN: (PLAIN, "same"),
    "bfloat16": ("bfloat16", "same"),
    **{name: (dtype, "same") for name, dtype in OWN.items()},
    "int8": ("bfloat16", "int8"),
    "int4": ("bfloat16", "int4"),
}
QUICK = [PLAIN, f"own bits in {PLAIN}"]
ROWS = (1, 2, 4, 16)
BEGINNING, PROMPT, CONTEXT = 16, 256, 512  # tokens
NO_BLOCKS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Row:
    kind: str
    rows: str  # of a step; or a prompt
    ms: float
    least: float
    most: float
    of_float32: float


class Model:
    """With its weights kept in one way."""

    def __init__(self, directory: Path, kind: str) -> None:
        model = ModelSettings(str(directory), *KINDS[kind], max_model_tokens=CONTEXT)
        settings = Settings(model, EngineSettings(slots=max(ROWS), token_budget=PROMPT))
        _, self._engine = build(choose(settings).settings)

    def run(self, prompts: list[Ids], num_tokens: int) -> tuple[list[float], list[int]]:
        """Returns the milliseconds of each step, and the tokens. All prompts are in the first step."""
        scheduler, times, tokens = SlotScheduler(self._engine.limits, PROMPT), list[float](), list[int]()
        for number, prompt in enumerate(prompts):
            scheduler.submit(Request(number, prompt, Sampling(max_tokens=num_tokens)), NO_BLOCKS)
        while (plan := scheduler.plan()) is not None:
            began_s = time.perf_counter()
            self._engine.launch(plan)
            output = self._engine.collect()
            times.append((time.perf_counter() - began_s) * 1e3)
            tokens += scheduler.apply(plan, output).tokens.tolist()
        return times, tokens


def write_float32(gguf: Path, directory: Path) -> None:
    """The same model with its numbers in float32, as safetensors."""
    from safetensors.torch import save_file

    source = open_source(gguf)
    (directory / "config.json").write_text(json.dumps({**source.config, "dtype": "float32"}))
    tensors = {name: source.read(name).contiguous() for name in source.tensors}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def measure(gguf: Path, kinds: list[str], rounds: int, steps: int) -> list[dict[str, Any]]:
    """Returns milliseconds by kind and work, of each round. Raises RuntimeError if tokens differ."""
    tokenizer = open_source(gguf).tokenizer()
    texts = [np.array(tokenizer.encode(prompt.text).ids, np.int32) for prompt in read_prompts()]
    beginnings = [text[:BEGINNING] for text in texts if len(text) >= BEGINNING]
    with tempfile.TemporaryDirectory() as directory:
        write_float32(gguf, Path(directory))
        models = {
            kind: Model(Path(directory) if kind in OWN.values() else gguf, kind)
            for kind in tqdm(kinds, desc="models", disable=None)
        }
    found = []
    for number in tqdm(range(rounds + 1), desc="rounds", disable=None):
        first, ms, tokens = number % len(kinds), dict[tuple[str, str], float](), dict[str, list[int]]()
        prompt = np.concatenate(texts[40 * number :])[:PROMPT]
        for kind in kinds[first:] + kinds[:first]:
            tokens[kind] = []
            for rows in ROWS:
                times, made = models[kind].run(beginnings[16 * number :][:rows], steps + 1)
                ms[kind, f"{rows}"] = float(np.median(times[1:]))
                tokens[kind] += made
            ms[kind, "prompt"] = min(models[kind].run([prompt], 1)[0][0] for _ in range(3))
        for own, plain in OWN.items():
            if own in kinds and tokens[own] != tokens[plain]:
                raise RuntimeError(f"{own}: other tokens than {plain}")
        found += [ms] if number else []  # the first one warms up
    return rows_of(found)


def rows_of(rounds: list[dict[tuple[str, str], float]]) -> list[dict[str, Any]]:
    order, made = [*KINDS], []
    for kind, rows in sorted(rounds[0], key=lambda key: (key[1] == "prompt", order.index(key[0]))):
        times = np.array([each[kind, rows] for each in rounds])
        ratios = times / [each[PLAIN, rows] for each in rounds]
        numbers = [round(float(each), 3) for each in (np.median(times), *_ends(times), np.median(ratios))]
        made.append(asdict(Row(kind, rows, *numbers)))
    return made


def _ends(times: Any) -> tuple[float, float]:
    return times.min(), times.max()


def main() -> None:
    parser = command_line(__doc__, quick="one round of a few steps, two ways in float32")
    parser.add_argument("--model", default="auto", help="a GGUF file; auto: SmolLM2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    if (environment := with_large_pages(os.environ)) != dict(os.environ):  # as a served engine has
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    work = (QUICK, 1, 3) if asked.quick else ([*KINDS], asked.rounds, asked.steps)
    gguf = located(Settings(ModelSettings(asked.model))).model_directory
    rows = measure(gguf, *work)
    if asked.json:
        write_result(asked.json, {"model": gguf.name, "rounds": work[1], "rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
