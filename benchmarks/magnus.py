"""Magnus's static policies side by side on the bundled model: request throughput, response times, valid tokens (docs/magnus.md).

    python benchmarks/magnus.py --json benchmarks/results/magnus.json --plot benchmarks/results/magnus.png

2,500 requests to learn from, the others arrive as a Poisson process at rates around the capacity of VS, which is measured first. VS is
a fixed batch in order of arrival, VSQ the same with int8 weights and a larger batch, CCB conservative continuous batching; GLP, ABP and
Magnus add length prediction, adaptive batch sizes and the order by response ratio, one after the other. All have the same memory: KV
blocks for `--vs-size` of the longest requests.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "build"))

from benchmarks.magnus_prediction import BatchSeconds, Lengths, features_of, observations, root_mean_square
from benchmarks.magnus_report import correlations, say_gains, table, write_json, write_plot
from benchmarks.magnus_requests import MODEL, answer_lengths, asks
from benchmarks.magnus_runs import Run, measure_batches, poisson, run_continuous, run_static
from python_backends.config import EngineSettings, ModelSettings, Settings
from python_backends.engine.protocol import Engine
from python_backends.instance import build
from python_backends.prediction.batch_time import RELEARN_EVERY_S as BATCHES_EVERY_S
from python_backends.prediction.forest import grow
from python_backends.request import ModelLimits
from python_backends.scheduling.static_batching import BatchLimits, safe_size

MAX_PROMPT_TOKENS, MAX_TOKENS = 256, 256  # the longest request; the second is the door's own default
BLOCK_TOKENS = 32
BLOCKS_A_REQUEST = -(-(MAX_PROMPT_TOKENS + MAX_TOKENS) // BLOCK_TOKENS)
MAX_ROWS = 96
LENGTHS_EVERY_S = 180.0
POLICIES = ("vs", "vsq", "ccb", "glp", "abp", "magnus")
PREDICTING = ("glp", "abp", "magnus")


class Engines:
    """One with the model's own weights and one with int8 weights, which has the memory that these leave."""

    def __init__(self, kind: str, threads: int, vs_size: int) -> None:
        self.plain = self._make(kind, threads, vs_size * BLOCKS_A_REQUEST, "same")
        self.quantised = self._make(kind, threads, vs_size * BLOCKS_A_REQUEST + blocks_saved_by_int8(), "int8")

    def of(self, policy: str) -> Engine:
        return self.quantised if policy == "vsq" else self.plain

    @staticmethod
    def _make(kind: str, threads: int, num_blocks: int, weights: str) -> Engine:
        model = ModelSettings(str(MODEL), weights=weights, max_model_tokens=MAX_PROMPT_TOKENS + MAX_TOKENS)
        engine = EngineSettings(kind, slots=min(MAX_ROWS, num_blocks), block_tokens=BLOCK_TOKENS, kv_blocks=num_blocks, threads=threads)
        return build(Settings(model, engine))[1]


def blocks_saved_by_int8() -> int:
    """KV blocks in the memory that float32 weights of the layers take and int8 ones do not."""
    from safetensors import safe_open

    with safe_open(MODEL / "model.safetensors", "np") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys() if ".layers." in name]  # noqa: SIM118
        layers = len({name.split(".")[2] for name in file.keys() if ".layers." in name})  # noqa: SIM118
        keys = int(file.get_slice("model.layers.0.self_attn.k_proj.weight").get_shape()[0])
    saved = sum(int(np.prod(shape)) for shape in shapes if len(shape) == 2) * 3  # bytes of a weight
    return saved // (layers * 2 * keys * 4 * BLOCK_TOKENS)


class Magnus:
    """What all runs share: requests, what is known of them, engines, limits."""

    def __init__(self, arguments: argparse.Namespace, cache: Path, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self._scale, self._seed, self._max_waste = arguments.time_scale, arguments.seed, arguments.max_waste
        self._engines = Engines(arguments.engine, arguments.threads, arguments.vs_size)
        plain, num_training = self._engines.plain, arguments.training
        asked = asks(num_training + arguments.requests, MAX_PROMPT_TOKENS, cache)
        self.training, self.asked = asked[:num_training], asked[num_training:]
        self.lengths = answer_lengths(self.training, plain, MAX_TOKENS, cache)
        made, self.encode_s = features_of(asked, cache)
        self._seen = observations(self.training, made[:num_training], self.lengths, MAX_TOKENS)
        nothing: NDArray[np.int64] = np.zeros(len(self.asked), np.int64)
        self._features = observations(self.asked, made[num_training:], nothing, MAX_TOKENS)
        print("growing the forest", flush=True)
        self._forest = pool.submit(grow, self._seen).result()
        self._measured = measure_batches(self.training, self.lengths, plain, self._limits(plain.limits), MAX_TOKENS)

    def capacity(self) -> float:
        """Requests per second of VS when all are there."""
        count = min(len(self.asked), 20 * self._limits(self._engines.plain.limits).fixed_size)
        work = replace(poisson(self.asked[:count], 1.0, MAX_TOKENS, self._seed), arrivals_s=np.zeros(count))
        return run_static("vs", "vs", work, self._engines.plain, self._limits(self._engines.plain.limits), None).row.request_throughput

    def run(self, policy: str, rate: float) -> tuple[Run, dict[str, Any]]:
        """A run, and how good its predictions were."""
        work, engine = poisson(self.asked, rate, MAX_TOKENS, self._seed), self._engines.of(policy)
        limits = self._limits(engine.limits)
        if policy == "ccb":
            return run_continuous(policy, work, engine, limits.fixed_size), {}
        if policy not in PREDICTING:
            return run_static(policy, "vs", work, engine, limits, None), {}
        lengths = Lengths(self._seen, self._forest, self._features, self._pool, LENGTHS_EVERY_S * self._scale)
        seconds = BatchSeconds(self._measured, BATCHES_EVERY_S * self._scale, self._scale)
        run = run_static(policy, policy, work, engine, limits, (lengths, seconds))
        lengths.finish()
        return run, {
            "policy": policy,
            "rate": rate,
            "length_rmse_tokens": root_mean_square(lengths.errors_tokens),
            "lengths_relearned": lengths.num_relearned,
            "batch_time_rmse_s": root_mean_square(seconds.errors_s),
            "batch_times_relearned": seconds.num_relearned,
        }

    def _limits(self, limits: ModelLimits) -> BatchLimits:
        size = safe_size(limits.num_blocks, limits.block_tokens, MAX_PROMPT_TOKENS + MAX_TOKENS)
        return BatchLimits(limits.num_blocks, limits.block_tokens, limits.num_slots, size, self._max_waste)


def measure(arguments: argparse.Namespace, cache: Path, pool: ProcessPoolExecutor) -> list[Run]:
    magnus = Magnus(arguments, cache, pool)
    capacity = magnus.capacity()
    print(f"VS answers {capacity:.1f} requests/s", flush=True)
    rates = arguments.rates or [load * capacity for load in arguments.loads]
    runs, predictions = [], []
    for rate in rates:
        for policy in arguments.only:
            run, prediction = magnus.run(policy, rate)
            runs.append(run)
            predictions += [prediction] if prediction else []
            row = run.row
            print(
                f"{policy} at {rate:.1f}/s: {row.request_throughput:.1f} requests/s, mean {row.mean_response_s:.2f} s, "
                f"{run.num_batches} batches, {run.num_out_of_memory} out of memory",
                flush=True,
            )
    pearson = correlations(magnus.training, magnus.lengths)
    about = {
        "vs_requests_s": capacity,
        "training_requests": len(magnus.training),
        "requests": len(magnus.asked),
        "mean_answer_tokens": float(magnus.lengths.mean()),
        "encode_ms_a_request": magnus.encode_s * 1e3,
        "pearson": pearson,
        "predictions": predictions,
    }
    if arguments.json:
        write_json(arguments.json, runs, about)
    if arguments.plot:
        write_plot(arguments.plot, [run.row for run in runs])
    print("\n".join(f"Pearson of input and answer length, {task}: {value:.3f}" for task, value in pearson.items()))
    print(f"the sentence encoder takes {magnus.encode_s * 1e3:.1f} ms a request; it is not in the times below")
    return runs


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def policy_names(text: str) -> list[str]:
    if wrong := [name for name in text.split(",") if name not in POLICIES]:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)!r} is not one of {', '.join(POLICIES)}")
    return text.split(",")


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--training", type=int, default=2500, help="requests to learn from")
    parser.add_argument("--requests", type=int, default=600, help="requests of each run")
    parser.add_argument("--loads", type=numbers, default=[0.5, 1.0, 2.0, 4.0], help="rates of arrival, in capacities of VS")
    parser.add_argument("--rates", type=numbers, help="rates of arrival, in requests per second, instead")
    parser.add_argument("--only", type=policy_names, default=list(POLICIES), help="policies, of " + ", ".join(POLICIES))
    parser.add_argument("--vs-size", type=int, default=7, help="requests of a batch of VS: memory is for so many of the longest")
    parser.add_argument("--max-waste", type=int, default=50_000, help="Φ: memory accesses that a batch may waste")
    parser.add_argument("--time-scale", type=float, default=0.05, help="of the paper's intervals of learning and errors in seconds")
    parser.add_argument("--engine", default="torch", choices=("torch", "openvino"))
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "gapless-magnus", help="keeps what can be used again"
    )
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--plot", type=Path, help="also draw the results here")
    parser.add_argument("--quick", action="store_true", help="a few requests at one rate: does it run at all?")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.training, arguments.requests, arguments.loads = 120, 40, [2.0]
    return arguments


def main() -> None:
    arguments = arguments_of()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        rows = [run.row for run in measure(arguments, arguments.cache, pool)]
    print(say_gains(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
