"""The same work through several engines, in turn in one run: tokens per second, latencies, time between tokens, memory.

    python benchmarks/peers.py --shapes S,M --dtype bfloat16 --rounds 3 --json benchmarks/results/peers.json

The work is `workload.json` (64 requests, closed loop, 16 in flight, greedy, EOS ignored); the models have random weights and the Qwen2
architecture, and are made here. Every engine runs in a process of its own and waits while another one works.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import platform
import resource
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peer_engines import ENGINES, Job, Timing, Work, num_cores

SHAPES: dict[str, dict[str, int]] = {
    "S": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1536},
    "M": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864},
}
VOCABULARY = 32_000
QUICK_REQUESTS, QUICK_TOKENS = 16, 12


@dataclass(frozen=True, slots=True)
class Row:
    engine: str
    shape: str
    dtype: str
    tok_s: float
    req_s: float
    latency_mean_s: float
    latency_p99_s: float
    itl_p50_ms: float
    itl_p99_ms: float
    peak_rss_gib: float


def row_of(engine: str, shape: str, dtype: str, timings: list[Timing], peak_rss_gib: float) -> Row:
    wall = max(timing.ended for timing in timings) - min(timing.submitted for timing in timings)
    latencies = [timing.ended - timing.submitted for timing in timings]
    gaps = np.concatenate([np.diff(timing.tokens) for timing in timings]) * 1e3
    return Row(
        engine=engine,
        shape=shape,
        dtype=dtype,
        tok_s=sum(len(timing.tokens) for timing in timings) / wall,
        req_s=len(timings) / wall,
        latency_mean_s=float(np.mean(latencies)),
        latency_p99_s=float(np.percentile(latencies, 99)),
        itl_p50_ms=float(np.percentile(gaps, 50)),
        itl_p99_ms=float(np.percentile(gaps, 99)),
        peak_rss_gib=peak_rss_gib,
    )


def median(rows: list[Row]) -> Row:
    """Of each figure by itself."""
    figures = {name: float(np.median([getattr(row, name) for row in rows])) for name in list(asdict(rows[0]))[3:]}
    return Row(rows[0].engine, rows[0].shape, rows[0].dtype, **figures)


class EngineProcess:
    """One engine in a process of its own, which ends with this one."""

    def __init__(self, name: str, directory: Path, dtype: str, in_flight: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_engine_process, args=(name, directory, dtype, in_flight, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()

    def run(self, work: Work) -> tuple[list[Timing], float]:
        """Timings, and the most memory the process ever had, in GiB."""
        self._connection.send(work)
        timings, peak = self._connection.recv()
        return timings, peak

    def close(self) -> None:
        self._connection.send(None)
        self._process.join()


def _engine_process(name: str, directory: Path, dtype: str, in_flight: int, connection: Connection) -> None:
    engine = ENGINES[name](directory, dtype, in_flight)
    connection.send("ready")
    while (work := connection.recv()) is not None:
        timings = engine.run(work)
        connection.send((timings, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20))


def make_model(shape: str, dtype: str, directory: Path) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(**SHAPES[shape], vocab_size=VOCABULARY, tie_word_embeddings=True, max_position_embeddings=4096)
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(directory)


def load_work(quick: bool) -> Work:
    table = json.loads(Path(__file__).with_name("workload.json").read_text())
    jobs = [Job(request["prompt"], request["max_tokens"]) for request in table["requests"]]
    if quick:
        jobs = [Job(job.prompt, min(job.max_tokens, QUICK_TOKENS)) for job in jobs[:QUICK_REQUESTS]]
    return Work(jobs, table["concurrency"])


def measure(shape: str, engines: list[str], dtype: str, rounds: int, work: Work) -> Iterator[Row]:
    """One warm-up and `rounds` passes of every engine, in turn; the medians."""
    rows: dict[str, list[Row]] = {name: [] for name in engines}
    with tempfile.TemporaryDirectory() as directory:
        print(f"{shape}: making the model", flush=True)
        make_model(shape, dtype, Path(directory))
        processes = {name: EngineProcess(name, Path(directory), dtype, work.in_flight) for name in engines}
        for number in range(rounds + 1):
            for name, process in processes.items():
                timings, peak = process.run(work)
                assert [len(timing.tokens) for timing in timings] == [job.max_tokens for job in work.jobs], f"{name} lost tokens"
                row = row_of(name, shape, dtype, timings, peak)
                print(f"{shape} {name}: {'round ' + str(number) if number else 'warm-up'}, {row.tok_s:.1f} tokens/s", flush=True)
                rows[name] += [row] if number else []
        for process in processes.values():
            process.close()
    yield from (median(rows[name]) for name in engines)


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.partition(": ")[2] for line in lines if line.startswith("model name")}
    threads = {name: value for name, value in os.environ.items() if "OMP_" in name}
    return {"processor": ", ".join(models), "cores": num_cores(), "memory_gib": round(memory, 1), "environment": threads}


def versions() -> dict[str, str]:
    names = ("torch", "transformers", "numpy")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def ratios(rows: list[Row]) -> dict[str, float]:
    """Output tokens per second of our engine over those of each other one, by shape."""
    ours = {row.shape: row.tok_s for row in rows if row.engine == "gapless"}
    others = [row for row in rows if row.engine != "gapless" and row.shape in ours]
    return {f"{row.shape}: gapless / {row.engine}": ours[row.shape] / row.tok_s for row in others}


def table(rows: list[Row]) -> str:
    names = list(asdict(rows[0]))
    cells = [[value if isinstance(value, str) else f"{value:.2f}" for value in asdict(row).values()] for row in rows]
    lines = [names, ["---"] * len(names), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_json(path: Path, rows: list[Row], rounds: int) -> None:
    result = {
        "machine": machine(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "rounds": rounds,
        "rows": [asdict(row) for row in rows],
        "ratios": ratios(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="S,M", help="of " + ", ".join(SHAPES))
    parser.add_argument("--only", default=",".join(ENGINES), help="engines, of " + ", ".join(ENGINES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--quick", action="store_true", help="a few short requests, one round: does it run at all?")
    arguments = parser.parse_args()
    work, rounds = load_work(arguments.quick), 1 if arguments.quick else arguments.rounds
    engines = arguments.only.split(",")
    rows = [row for shape in arguments.shapes.split(",") for row in measure(shape, engines, arguments.dtype, rounds, work)]
    if arguments.json:
        write_json(arguments.json, rows, rounds)
    for name, ratio in ratios(rows).items():
        print(f"{name}: {ratio:.2f}")
    print(table(rows))


if __name__ == "__main__":
    main()
