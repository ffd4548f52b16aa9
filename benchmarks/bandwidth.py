"""Measures how near steps of a few rows are to reading their weights once, by the engine alone.

    python -m benchmarks.bandwidth --json benchmarks/results/bandwidth.json

Of each model (S and M have random weights, `SmolLM2` is the published one and gets beginnings of the prompts
of `real_prompts`), with `model.weights` of each kind in bfloat16: steps of 1, 2 and 4 rows. The machine's
bandwidth is what torch's sum of a gibibyte of float32 reads, by all processors, right before each model's
steps. `of_reading` is a step's time divided by what it would take to read the weights of its products at that
bandwidth: the median of the rounds, the least and the most. Keys, values and activations are not counted.
Where weights fit into the processor's last cache it may be below 1.
"""

from __future__ import annotations

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
from benchmarks.common.models import VOCABULARY, make_model, make_published
from benchmarks.common.work import PUBLISHED, num_cores
from benchmarks.real_prompts.prompts import read_prompts
from benchmarks.results_file import table, write_result
from benchmarks.weight_formats import BEGINNING, Model
from python_backends.checkpoint.model_facts import read_model_facts
from python_backends.checkpoint.opening import open_source
from python_backends.linux.large_pages import with_large_pages
from python_backends.nouns.request import Ids

SHAPES = ("S", "M", PUBLISHED)
QUICK = ("tiny",)
BYTES = {"bfloat16": (2, 2), "int8": (1, 1), "int4": (5 / 8, 1)}  # of a weight of layers, and of the head
ROWS = (1, 2, 4)
READ_BYTES, TIMES = 1 << 30, 3


@dataclass(frozen=True, slots=True)
class Row:
    model: str
    weights: str
    mib: int  # read in a step
    rows: int
    ms: float
    gb_s: float
    machine_gb_s: float
    of_reading: float
    least: float
    most: float


def machine_bandwidth(numbers: Any) -> float:
    """Bytes a second, the best of some times."""
    times = []
    for _ in range(TIMES):
        began_s = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - began_s)
    return READ_BYTES / min(times)


def weight_bytes(directory: Path, weights: str) -> int:
    """What a step reads of weights in products."""
    facts = read_model_facts(open_source(directory))
    queries, keys = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    attention = facts.hidden_size * (queries + 2 * keys) + queries * facts.hidden_size
    feed_forward = 3 * facts.hidden_size * facts.intermediate_size  # all of these models are gated
    of_layers, of_head = BYTES[weights]
    layers = facts.num_layers * (attention + feed_forward)
    return int(layers * of_layers + facts.vocab_size * facts.hidden_size * of_head)


def prompts_of(directory: Path, shape: str) -> list[Ids]:
    if shape != PUBLISHED:
        drawn = np.random.default_rng(0).integers(VOCABULARY, size=(max(ROWS), BEGINNING))
        return list(drawn.astype(np.int32))
    tokenizer = open_source(directory).tokenizer()
    texts = (tokenizer.encode(prompt.text).ids for prompt in read_prompts())
    return [np.array(ids[:BEGINNING], np.int32) for ids in texts if len(ids) >= BEGINNING][: max(ROWS)]


def make(shape: str, directory: Path) -> None:
    """Numbers of bfloat16 in the files: those of few bits would stay few with AMX."""
    directory.mkdir()
    if shape == PUBLISHED:
        make_published("bfloat16", directory)
    else:
        make_model(shape, "bfloat16", directory)


def measure(shapes: tuple[str, ...], rounds: int, steps: int) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(num_cores())
    numbers = torch.ones(READ_BYTES // 4)  # zeros would be one page of memory
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            make(shape, directory := Path(folder, shape))
            prompts = prompts_of(directory, shape)
            models = {weights: Model(directory, weights) for weights in BYTES}
            found: dict[tuple[str, int], list[tuple[float, float]]] = {}
            for number in tqdm(range(rounds + 1), desc=f"{shape}, rounds", disable=None):
                for weights, model in models.items():
                    bandwidth = machine_bandwidth(numbers)
                    for count in ROWS:
                        times, _ = model.run(prompts[:count], steps + 1)
                        if number:  # the first one warms up
                            step_ms = float(np.median(times[1:]))
                            found.setdefault((weights, count), []).append((step_ms, bandwidth))
            for (weights, count), each in found.items():
                rows.append(row_of(shape, weights, weight_bytes(directory, weights), count, np.array(each)))
    return rows


def row_of(shape: str, weights: str, read: int, count: int, rounds: Any) -> dict[str, Any]:
    """`rounds` [rounds, 2]: milliseconds of a step, and the machine's bytes a second."""
    ms, bandwidth = rounds.T
    ratios = ms / 1e3 * bandwidth / read
    step_ms = float(np.median(ms))
    numbers = (step_ms, read / step_ms / 1e6, np.median(bandwidth) / 1e9)
    rounded = [round(float(each), 2) for each in (*numbers, np.median(ratios), ratios.min(), ratios.max())]
    return asdict(Row(shape, weights, read >> 20, count, *rounded))


def main() -> None:
    parser = command_line(__doc__, quick="one round of a few steps of a tiny model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    if (environment := with_large_pages(os.environ)) != dict(os.environ):  # as a served engine has
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    rounds = 1 if asked.quick else asked.rounds
    rows = measure(QUICK, 1, 3) if asked.quick else measure(SHAPES, rounds, asked.steps)
    if asked.json:
        write_result(asked.json, {"rounds": rounds, "rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
