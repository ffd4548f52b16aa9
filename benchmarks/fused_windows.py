"""Measures what a window of training costs in a step of requests, compared with a step of its own.

    python benchmarks/fused_windows.py --json benchmarks/results/fused_windows.json

The torch engine decodes requests, each with 256 tokens before the first measured step, on random weights of a
shape; a LoRA adapter of rank 16 and all seven modules is trained in its KV blocks. A pass takes three times,
in turn: `step_ms` is a step without a window, `window_ms` a window by itself, `fused_ms` a step with a window
in its products; all without the loss, which is computed after either. `of_separate` is fused_ms over the sum
of the other two, of the medians of each round's passes: the median of the rounds, with least and most.
`processor` is the same ratio by processor time of all threads, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

CONTEXT = 256  # tokens of each request, and of the pack before the window
PACK_TOKENS = 512  # of one sequence
WARM = 2  # passes before the first round
MOST_PROMPT_STEPS = 512  # until all requests decode


@dataclass(frozen=True, slots=True)
class Row:
    shape: str
    dtype: str
    rows: int
    window: int
    step_ms: float
    window_ms: float
    fused_ms: float
    of_separate: float
    least: float
    most: float
    processor: float
    rounds_of_separate: list[float]
    rounds_processor: list[float]


class Bench:
    """An engine in which `num_rows` requests decode while an adapter is trained."""

    def __init__(self, directory: str, dtype: str, num_rows: int, threads: int, num_steps: int) -> None:
        """`num_steps`: that are measured."""
        from benchmarks.finetuning_trainers import ADAPTER, SEED, random_examples
        from python_backends.finetuning.packs import packed
        from python_backends.finetuning.pruning import plans
        from python_backends.instance.build import build
        from python_backends.nouns.request import Request, Sampling
        from python_backends.nouns.training import Keep
        from python_backends.settings import EngineSettings, ModelSettings, Settings

        engine = EngineSettings(kind="torch", slots=num_rows, kv_memory_gib=1.0, threads=threads)
        model = ModelSettings(directory=directory, dtype=dtype)
        self._scheduler, self._engine = build(Settings(model=model, engine=engine))
        self._pack = packed(random_examples([PACK_TOKENS], 1.0))
        self._session = self._engine.start_training()(ADAPTER, SEED)  # type: ignore[attr-defined]
        chosen = plans(self._session.facts, self._session.targets, Keep.PRODUCTS)
        self._session.install(chosen)
        count = self._session.num_blocks(self._pack, chosen)
        borrowed = self._scheduler.blocks.borrow(count, lambda: None)
        self._session.begin(self._pack, self._pack.num_labels, borrowed)
        self._session.window(0, PACK_TOKENS)
        generator = np.random.default_rng(1)
        for number in range(num_rows):
            prompt = generator.integers(0, 1000, CONTEXT).astype(np.int32)
            request = Request(number, prompt, Sampling(max_tokens=MOST_PROMPT_STEPS + num_steps))
            self._scheduler.submit(request, np.zeros(0, np.int32))
        while self._step(0) or self._scheduler.num_waiting:
            assert self._scheduler.num_steps < MOST_PROMPT_STEPS, "requests wait for memory"
        self._num_windows = 0

    def passes(self, window: int, count: int) -> dict[str, Any]:
        """The median milliseconds of each kind of work, [2]: by the clock, and of processor time."""
        kinds: dict[str, Callable[[], object]] = {
            "step": lambda: self._step(0),
            "window": lambda: self._session.window(*self._next(window)),
            "fused": lambda: self._step(window),
        }
        found: dict[str, list[Any]] = {kind: [] for kind in kinds}
        for _ in range(count):
            for kind, work in kinds.items():
                began_s = _clocks()
                work()
                found[kind].append(1000 * (_clocks() - began_s))
        return {kind: np.median(each, axis=0) for kind, each in found.items()}

    def close(self) -> None:
        self._engine.close()

    def _step(self, window: int) -> int:
        """With a window of so many tokens, if there are any. How many prompt tokens it had."""
        from python_backends.nouns.training import Window
        from python_backends.scheduling.piece_time import loads

        plan = self._scheduler.plan()
        assert plan is not None
        if window:
            first, last = self._next(window)
            plan = plan.with_window(Window(first, last, loads(self._pack, first, last)))
        self._engine.launch(plan)
        self._scheduler.apply(plan, self._engine.collect())
        return len(plan.tokens)

    def _next(self, window: int) -> tuple[int, int]:
        """Never the same twice: what a step has computed is not computed again."""
        self._num_windows += 1
        first = CONTEXT - self._num_windows % 2
        return first, first + window


def measure(bench: Bench, case: tuple[str, str, int], window: int, rounds: int, passes: int) -> Row:
    bench.passes(window, WARM)
    found = [
        bench.passes(window, passes)
        for _ in tqdm(range(rounds), desc=f"{', '.join(map(str, case))} rows, {window}", disable=None)
    ]
    ratios = np.array([each["fused"] / (each["step"] + each["window"]) for each in found])
    step_ms, window_ms, fused_ms = (
        float(np.median([each[kind][0] for each in found])) for kind in ("step", "window", "fused")
    )
    median, processor = np.median(ratios, axis=0).tolist()
    by_clock, by_processor = ratios.T.tolist()
    extremes = min(by_clock), max(by_clock)
    times = step_ms, window_ms, fused_ms
    return Row(*case, window, *times, median, *extremes, processor, by_clock, by_processor)


def _clocks() -> Any:
    return np.array([time.perf_counter(), time.process_time()])


def main() -> None:
    from benchmarks.finetuning_trainers import build_model
    from benchmarks.results_file import table, write_result

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="S", help="which of S and M")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--rows", default="8,16", help="requests that decode")
    parser.add_argument("--windows", default="16,64,128", help="tokens of a window, at most 256")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--passes", type=int, default=9, help="of a round")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--quick", action="store_true", help="one round of one pass of the least work")
    asked = parser.parse_args()
    if asked.quick:
        asked.dtypes, asked.rows, asked.windows, asked.rounds, asked.passes = "float32", "8", "16", 1, 1
    rows: list[Row] = []
    windows = [int(window) for window in asked.windows.split(",")]
    num_steps = 2 * len(windows) * (WARM + asked.rounds * asked.passes)
    for shape in asked.shapes.split(","):
        with tempfile.TemporaryDirectory() as directory:
            build_model(shape, "float32").save_pretrained(directory)
            for dtype in asked.dtypes.split(","):
                for num_rows in map(int, asked.rows.split(",")):
                    bench = Bench(directory, dtype, num_rows, asked.threads, num_steps)
                    rows += [
                        measure(bench, (shape, dtype, num_rows), window, asked.rounds, asked.passes)
                        for window in windows
                    ]
                    bench.close()
    if asked.json:
        about: dict[str, Any] = {"threads": asked.threads, "context": CONTEXT, "passes": asked.passes}
        write_result(asked.json, {**about, "rows": [asdict(row) for row in rows]})
    print(table([_shown(row) for row in rows]))


def _shown(row: Row) -> dict[str, str]:
    return {
        "shape": f"{row.shape}, {row.dtype}",
        "rows": str(row.rows),
        "window": str(row.window),
        "step_ms": f"{row.step_ms:.1f}",
        "window_ms": f"{row.window_ms:.1f}",
        "fused_ms": f"{row.fused_ms:.1f}",
        "of_separate": f"{row.of_separate:.2f} × ({row.least:.2f}–{row.most:.2f})",
        "processor": f"{row.processor:.2f} ×",
    }


if __name__ == "__main__":
    main()
