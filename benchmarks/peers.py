"""The same work through several engines, in turn in one run: tokens per second, latencies, time between tokens, memory.

    python benchmarks/peers.py --shapes S,M --dtype bfloat16 --rounds 3 --json benchmarks/results/peers.json

The work is `workload.json` (64 requests, closed loop, 16 in flight, greedy, EOS ignored); the models have random weights and the Qwen2
architecture, and are made here. Every engine runs in a process of its own and waits while another one works; those that don't fit into
the project's environment get one of their own, made on first use (README.md beside this file says what each needs). An engine that
can't be had is named and left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peer_environments import ready
from benchmarks.peer_models import SHAPES, VOCABULARY, make_model, make_tokenizer
from benchmarks.peer_process import EngineProcess
from benchmarks.peer_report import Row, median, ratios, row_of, table, write_json, write_plot
from benchmarks.peer_work import Work, load_work

DEFAULT = ("gapless", "gapless_triton", "openvino", "vllm", "llama_cpp", "transformers", "transformers_continuous")
OTHERS = ("gapless_async", "gapless_torch")


class Peers:
    """The engines of one shape, all up, and those that were left out and why."""

    def __init__(self, shape: str, dtype: str, work: Work, directory: Path) -> None:
        self.left_out: dict[str, str] = {}
        self.versions: dict[str, dict[str, str]] = {}  # of the packages in each engine's environment
        self._shape, self._dtype, self._work, self._directory = shape, dtype, work, directory
        self._processes: dict[str, EngineProcess] = {}

    def start(self, names: Iterable[str]) -> None:
        for name in names:
            print(f"{self._shape} {name}: starting", flush=True)
            try:
                environment = ready(name)
                self._processes[name] = EngineProcess(
                    name, self._directory, self._dtype, self._work.in_flight, environment.python, **environment.variables
                )
                self.versions[name] = self._processes[name].versions
            except (subprocess.CalledProcessError, OSError, RuntimeError) as error:
                self.leave_out(name, error)

    def run(self, rounds: int) -> list[Row]:
        """One warm-up and `rounds` passes of every engine, in turn; the medians."""
        rows: dict[str, list[Row]] = {name: [] for name in self._processes}
        for number in range(rounds + 1):
            for name in list(self._processes):
                try:
                    row = self._pass(name, number)
                except RuntimeError as error:
                    self.leave_out(name, error)
                    self._processes.pop(name).close()
                    continue
                print(f"{self._shape} {name}: {f'round {number}' if number else 'warm-up'}, {row.tok_s:.1f} tokens/s", flush=True)
                rows[name] += [row] if number else []
        return [median(rows[name]) for name in self._processes]

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def leave_out(self, name: str, error: Exception) -> None:
        self.left_out[f"{self._shape}: {name}"] = str(error)
        print(f"{self._shape} {name}: left out: {error}", flush=True)

    def _pass(self, name: str, number: int) -> Row:
        timings, peak = self._processes[name].run(self._work.shifted(number, VOCABULARY))
        if [len(timing.tokens) for timing in timings] != [job.max_tokens for job in self._work.jobs]:
            raise RuntimeError("it gave more or fewer tokens than it was asked for")
        return row_of(name, self._shape, self._dtype, timings, peak)


def measure(shape: str, engines: list[str], dtype: str, rounds: int, work: Work) -> tuple[list[Row], dict[str, str], dict[str, Any]]:
    """Medians of the engines that ran, what was wrong with the others, and the versions in each one's environment."""
    with tempfile.TemporaryDirectory() as directory:
        print(f"{shape}: making the model", flush=True)
        make_model(shape, dtype, Path(directory))
        make_tokenizer(Path(directory))
        peers = Peers(shape, dtype, work, Path(directory))
        try:
            peers.start(engines)
            return peers.run(rounds), peers.left_out, peers.versions
        finally:
            peers.close()


def names_of(known: Iterable[str], asked: str) -> list[str]:
    names = asked.split(",")
    if wrong := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)!r} is not one of {', '.join(known)}")
    return names


def shape_names(asked: str) -> list[str]:
    return names_of(SHAPES, asked)


def engine_names(asked: str) -> list[str]:
    return names_of((*DEFAULT, *OTHERS), asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="S,M", type=shape_names, help="of " + ", ".join(SHAPES))
    parser.add_argument("--only", default=",".join(DEFAULT), type=engine_names, help="engines, of " + ", ".join((*DEFAULT, *OTHERS)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--plot", type=Path, help="also draw the results here")
    parser.add_argument("--quick", action="store_true", help="a few short requests, one round: does it run at all?")
    arguments = parser.parse_args()
    work, rounds = load_work(arguments.quick), 1 if arguments.quick else arguments.rounds
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    versions: dict[str, Any] = {}
    for shape in arguments.shapes:
        measured, missing, known = measure(shape, arguments.only, arguments.dtype, rounds, work)
        rows, left_out, versions = rows + measured, left_out | missing, versions | known
        if arguments.json:
            write_json(arguments.json, rows, rounds, {"left_out": left_out, "environments": versions})
    if arguments.plot and rows:
        write_plot(arguments.plot, rows)
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")
    print(table(rows) if rows else "nothing was measured")
    for name, ratio in ratios(rows).items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
