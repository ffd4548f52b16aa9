"""Compares Magnus's static policies on the bundled model: request throughput, response times, valid tokens
(docs/magnus.md).

    python -m benchmarks.magnus --json benchmarks/results/magnus.json --plot benchmarks/results/magnus.png

2,500 requests are for learning; the others arrive as a Poisson process at rates around the capacity of VS,
which is measured first. VS is a fixed batch in order of arrival, VSQ the same with int8 weights and a larger
batch, CCB conservative continuous batching. GLP adds length prediction, ABP also adaptive batch sizes, and
Magnus also the order by response ratio. All have the same memory: KV blocks for `--vs-size` of the longest
requests.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common.command_line import command_line
from benchmarks.magnus.comparison import POLICIES, Comparison
from benchmarks.magnus.report import correlations, say_gains, shown, write_json, write_plot
from benchmarks.magnus.runs import CONTINUOUS, Run
from benchmarks.results_file import CORES, table


def measure(arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> list[Run]:
    magnus = Comparison(arguments, pool)
    print(
        "a step takes, in ms: " + ", ".join(f"{name} {value:.3g}" for name, value in magnus.steps_ms.items()),
        flush=True,
    )
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
                f"{policy} at {rate:.1f}/s: {row.request_throughput:.1f} requests/s, mean"
                f" {row.mean_response_s:.2f} s, {run.num_batches} batches, {run.num_out_of_memory} out of"
                " memory",
                flush=True,
            )
    about = about_of(magnus, capacity, arguments) | {"predictions": predictions}
    if arguments.json:
        write_json(arguments.json, runs, about)
    if arguments.plot:
        write_plot(arguments.plot, [run.row for run in runs])
    print(
        "\n".join(
            f"Pearson of input and answer length, {task}: {value:.3f}"
            for task, value in about["pearson"].items()
        )
    )
    print(
        f"the sentence encoder takes {magnus.encode_s * 1e3:.1f} ms a request; it is not in the times below"
    )
    return runs


def about_of(magnus: Comparison, capacity: float, arguments: argparse.Namespace) -> dict[str, Any]:
    kind = "simulated" if arguments.simulate else "torch"
    return {
        "engine": {"kind": kind, "dtype": arguments.dtype, "threads": arguments.threads or CORES},
        "ccb_policy": CONTINUOUS.policy,
        "vs_requests_s": capacity,
        "training_requests": len(magnus.training),
        "requests": len(magnus.asked),
        "mean_answer_tokens": float(magnus.lengths.mean()),
        "step_ms": magnus.steps_ms,
        "encode_ms_a_request": magnus.encode_s * 1e3,
        "pearson": correlations(magnus.training, magnus.lengths),
    }


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def policy_names(text: str) -> list[str]:
    if wrong := [name for name in text.split(",") if name not in POLICIES]:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)!r} is not one of {', '.join(POLICIES)}")
    return text.split(",")


def arguments_of() -> argparse.Namespace:
    parser = command_line(
        __doc__, quick="a few requests at one rate: does it run at all?", plot="also draw the results here"
    )
    parser.add_argument("--training", type=int, default=2500, help="requests to learn from")
    parser.add_argument("--requests", type=int, default=1000, help="requests of each run")
    parser.add_argument(
        "--loads", type=numbers, default=[1.0, 3.0, 8.0], help="rates of arrival, in capacities of VS"
    )
    parser.add_argument("--rates", type=numbers, help="rates of arrival, in requests per second, instead")
    parser.add_argument(
        "--only", type=policy_names, default=list(POLICIES), help="policies, of " + ", ".join(POLICIES)
    )
    parser.add_argument(
        "--vs-size",
        type=int,
        default=7,
        help="requests of a batch of VS: memory is for this many of the longest",
    )
    parser.add_argument(
        "--max-waste",
        type=int,
        default=4_000,
        help="Φ: memory accesses that a batch may waste; it grows with the square of the lengths",
    )
    parser.add_argument(
        "--time-scale",
        type=float,
        default=0.05,
        help="of the paper's intervals of learning and errors in seconds",
    )
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument(
        "--threads", type=int, default=1, help="of the engine; 0: one per core. The learner takes another"
    )
    parser.add_argument(
        "--simulate",
        type=numbers,
        metavar="FIXED,ROW,TOKEN",
        help="on an engine whose steps take this time, in ms",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "gapless-magnus",
        help="folder for results that can be used again",
    )
    arguments = parser.parse_args()
    if arguments.simulate:
        # whose times are another engine's
        arguments.only = [policy for policy in arguments.only if policy != "vsq"]
    if arguments.quick:
        arguments.training, arguments.requests, arguments.loads = 120, 40, [2.0]
    return arguments


def main() -> None:
    arguments = arguments_of()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        rows = [run.row for run in measure(arguments, pool)]
    print(say_gains(rows))
    print(table([shown(row) for row in rows]))


if __name__ == "__main__":
    main()
