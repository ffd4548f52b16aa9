"""Runs the same work through several engines, in turn in one run: tokens per second, latencies, time between
tokens, memory.

    python -m benchmarks.peers --shapes S,M --rounds 5 --json benchmarks/results/peers.json

The work is `workload.json` (64 requests, closed loop, 16 in flight, greedy, EOS ignored), or with `--work
longer` one with prompts of up to 1,500 tokens and answers of up to 600. The models have random weights and
the Qwen2 architecture, and are made here. All engines have the same cores, large pages, a pool of 1 GiB for
KV, and 512 tokens per step. Every engine runs in its own process and waits while another one works; the order
rotates from round to round. Engines that can't be installed in the project's environment get their own, made
on first use (see README.md in this folder). An engine that can't be installed or started is named and left
out.

Before the measurement, greedy float32 answers of the bundled model are compared; an engine with different
tokens is left out. For engines with several variants (vLLM), all of them are tried for a short time on each
shape, and the best one is measured. `--busy 1`: another process computes something else meanwhile, as on a
laptop.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.command_line import command_line
from benchmarks.common.models import SHAPES, VOCABULARY, make_model, make_tokenizer
from benchmarks.common.work import KV_POOL_GIB, PEER_TOKEN_BUDGET, WORKS, Work, load_work
from benchmarks.peers.check import Agreement, SameTokens, as_rows
from benchmarks.peers.process import EngineProcess, prepare_model
from benchmarks.peers.report import Row, fields_of, line_of, ratios, row_of, table, write_json, write_plot
from benchmarks.peers.setups import DEFAULT, SETUPS, Setup, default_engines, setups_of, variants

TRIAL_ROUNDS = 2
# before each pass: some engines' threads still poll for a while after their pass (vLLM's worker: a second)
REST_S = 1.5
MIN_FREE_GIB = 4.0  # of memory, before another engine is started
# raised by an engine that can't be installed or started
CANNOT = (subprocess.CalledProcessError, OSError, RuntimeError)


class LeftOut:
    """The engines that could not be measured, and why."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def add(self, what: str, error: object) -> None:
        self.reasons[what] = str(error)
        print(f"{what}: left out: {error}", flush=True)


class Peers:
    """Some engines with one model, all of them started. Each works while the others wait."""

    def __init__(
        self, shape: str, dtype: str, work: Work, directory: Path, left_out: LeftOut, num_busy: int = 0
    ) -> None:
        self.versions: dict[str, dict[str, str]] = {}  # of the packages in each engine's environment
        self._shape, self._dtype, self._work, self._directory = shape, dtype, work, directory
        self._left_out, self._num_busy = left_out, num_busy
        self._processes: dict[str, EngineProcess] = {}

    def start(self, setups: Iterable[Setup]) -> None:
        for setup in setups:
            name = f"{setup.name}, {setup.variant}" if setup.variant else setup.name
            started_s = time.monotonic()
            try:
                if (free := free_gib()) < MIN_FREE_GIB:
                    raise RuntimeError(
                        f"only {free:.1f} GiB of memory are free with the engines that run: measure fewer of"
                        " them at the same time"
                    )
                prepare_model(setup, self._directory, self._dtype)
                self._processes[name] = EngineProcess(setup, self._directory, self._dtype, self._work)
                self.versions[name] = self._processes[name].versions
                print(f"{self._shape} {name}: up after {time.monotonic() - started_s:.0f} s", flush=True)
            except CANNOT as error:
                self._left_out.add(f"{self._shape}: {name}", error)

    def run(self, rounds: int) -> list[Row]:
        """Runs a warm-up and `rounds` passes of every engine. Each round begins with another engine."""
        rows: list[Row] = []
        for number in range(rounds + 1):
            for name in rotated(list(self._processes), number):
                try:
                    row = self._pass(name, number)
                except RuntimeError as error:
                    self._left_out.add(f"{self._shape}: {name}", error)
                    self._processes.pop(name).close()
                    continue
                print(
                    f"{self._shape} {name}: {f'round {number}' if number else 'warm-up'}, {row.tok_s:.1f}"
                    " tokens/s",
                    flush=True,
                )
                rows += [row] if number else []
        return [row for name in self._processes for row in rows if row.engine == name]

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def _pass(self, name: str, number: int) -> Row:
        time.sleep(REST_S)
        with busy(self._num_busy):
            timings, peak = self._processes[name].run(self._work.shifted(number, VOCABULARY))
        if [len(timing.tokens) for timing in timings] != [job.max_tokens for job in self._work.jobs]:
            raise RuntimeError("it returned more or fewer tokens than requested")
        return row_of(name, self._shape, self._dtype, number, timings, peak)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """`count` other processes that do nothing but compute, as on a laptop where something else runs."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def free_gib() -> float:
    """Returns the memory that is available to new processes, in GiB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 2**20


def rotated(names: list[str], by: int) -> list[str]:
    first = by % len(names) if names else 0
    return names[first:] + names[:first]


class Measurement:
    """One run of this script, with its results so far."""

    def __init__(
        self, dtype: str, rounds: int, work: Work, token_budgets: list[int], tries: bool, num_busy: int = 0
    ) -> None:
        """`num_busy`: other processes that compute while an engine is measured, and tried."""
        self.rows: list[Row] = []
        self.left_out = LeftOut()
        self.versions: dict[str, dict[str, str]] = {}
        self.agreements: list[Agreement] = []
        # by shape and variant: tokens per second of each round
        self.trials: dict[str, dict[str, list[float]]] = {}
        self.chosen: dict[str, str] = {}
        self._dtype, self._rounds, self._work, self._token_budgets, self._tries = (
            dtype,
            rounds,
            work,
            token_budgets,
            tries,
        )
        self._num_busy = num_busy
        self._refused: set[str] = set()

    def compare_tokens(self, engines: Iterable[str]) -> None:
        """Leaves out those whose float32 tokens are not the reference's."""
        with tempfile.TemporaryDirectory() as directory:
            print("greedy tokens of the bundled model: the reference", flush=True)
            same = SameTokens(Path(directory))
            for name in engines:
                try:
                    found = [
                        same.compare(SETUPS[name], dtype) for dtype in dict.fromkeys(("float32", self._dtype))
                    ]
                except CANNOT as error:
                    self._refuse(name, error)
                    continue
                self.agreements += found
                print("\n".join(map(str, found)), flush=True)
                if any(agreement.is_refused for agreement in found):
                    self._refuse(name, "its float32 tokens are not the reference's")

    def measure(self, shape: str, engines: Iterable[str]) -> None:
        setups = setups_of([name for name in engines if name not in self._refused], self._token_budgets)
        with tempfile.TemporaryDirectory() as directory:
            print(f"{shape}: making the model", flush=True)
            make_model(shape, self._dtype, Path(directory))
            make_tokenizer(Path(directory))
            best = {
                name: self._best_variant(shape, name, Path(directory))
                for name in dict.fromkeys(each.worker for each in setups)
            }
            chosen = [replace(each, variables=best[each.worker]) for each in setups]
            with self._engines(shape, self._work, Path(directory)) as peers:
                peers.start(chosen)
                self.rows += peers.run(self._rounds)

    def about(self) -> dict[str, Any]:
        """Returns the fields of the JSON other than the rows."""
        return {
            "work": fields_of(self._work),
            "rounds": self._rounds,
            "busy_processes": self._num_busy,
            "every_engine": {
                "kv_pool_gib": KV_POOL_GIB,
                "token_budget": PEER_TOKEN_BUDGET,
                "large_pages": "GLIBC_TUNABLES",
            },
            "same_tokens": as_rows(self.agreements),
            "trials_tok_s": self.trials,
            "chosen": self.chosen,
            "left_out": self.left_out.reasons,
            "environments": self.versions,
        }

    def _best_variant(self, shape: str, worker: str, directory: Path) -> dict[str, str]:
        """Returns the variables of the variant with the most tokens per second in a short trial."""
        try:
            found = variants(SETUPS[worker])
        except CANNOT:
            return {}
        if len(found) == 1 or not self._tries:
            return found[0].variables
        print(f"{shape} {worker}: a trial of {len(found)} variants", flush=True)
        work = replace(self._work, jobs=self._work.jobs[: len(self._work.jobs) // 2])
        with self._engines(shape, work, directory) as peers:
            peers.start(found)
            rows = peers.run(TRIAL_ROUNDS)
        speeds = {
            name: [row.tok_s for row in rows if row.engine == name]
            for name in dict.fromkeys(row.engine for row in rows)
        }
        self.trials |= {shape: speeds}
        if not speeds:
            return found[0].variables
        best = max(speeds, key=lambda name: sum(speeds[name]))
        self.chosen[f"{shape}: {worker}"] = best
        print(f"{shape}: chosen: {best}", flush=True)
        return next(each.variables for each in found if best.endswith(each.variant))

    @contextmanager
    def _engines(self, shape: str, work: Work, directory: Path) -> Iterator[Peers]:
        peers = Peers(shape, self._dtype, work, directory, self.left_out, self._num_busy)
        try:
            yield peers
        finally:
            peers.close()
            self.versions |= peers.versions

    def _refuse(self, name: str, why: object) -> None:
        self._refused.add(name)
        self.left_out.add(name, why)


def names_of(known: Iterable[str], asked: str) -> list[str]:
    names = asked.split(",")
    if wrong := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)!r} is not one of {', '.join(known)}")
    return names


def shape_names(asked: str) -> list[str]:
    return names_of(SHAPES, asked)


def engine_names(asked: str) -> list[str]:
    return names_of(SETUPS, asked)


def token_budgets(asked: str) -> list[int]:
    return [int(tokens) for tokens in asked.split(",")]


def arguments_of() -> argparse.Namespace:
    parser = command_line(
        __doc__,
        quick="a few short requests, one round: does it run at all?",
        plot="also draw the results here",
    )
    parser.add_argument("--shapes", default="S,M", type=shape_names, help="of " + ", ".join(SHAPES))
    parser.add_argument(
        "--only",
        type=engine_names,
        help=f"engines, of {', '.join(SETUPS)}; default {', '.join(DEFAULT)}, on M without gapless_torch",
    )
    parser.add_argument(
        "--work", default="W", choices=WORKS, help="the requests: W, or longer and of mixed lengths; W"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument(
        "--token-budgets",
        type=token_budgets,
        default=[PEER_TOKEN_BUDGET],
        help=(
            "tokens of a step of OpenVINO GenAI and vLLM, a row for each: fewer give shorter pauses between"
            " tokens; 128,256,512"
        ),
    )
    parser.add_argument(
        "--check", default=True, action=argparse.BooleanOptionalAction, help="compare tokens before timing"
    )
    parser.add_argument(
        "--trial",
        action=argparse.BooleanOptionalAction,
        help="of an engine's variants; default: not with --quick",
    )
    parser.add_argument(
        "--busy", type=int, default=0, help="processes that compute something else meanwhile; 0"
    )
    return parser.parse_args()


def main() -> None:
    asked = arguments_of()
    rounds, tries = (
        1 if asked.quick else asked.rounds,
        not asked.quick if asked.trial is None else asked.trial,
    )
    work = load_work(asked.quick, asked.work)
    found = Measurement(asked.dtype, rounds, work, asked.token_budgets, tries, asked.busy)
    engines = {shape: asked.only or default_engines(shape) for shape in asked.shapes}
    if asked.check:
        found.compare_tokens(dict.fromkeys(name for names in engines.values() for name in names))
    for shape, names in engines.items():
        found.measure(shape, names)
        if asked.json:
            write_json(asked.json, found.rows, found.about())
    if asked.plot and found.rows:
        write_plot(asked.plot, found.rows)
    for name, why in found.left_out.reasons.items():
        print(f"left out: {name}: {why}")
    for name, ratio in ratios(found.rows).items():
        print(f"{name}: {ratio}")
    print(line_of(work))
    print(table(found.rows) if found.rows else "nothing was measured")


if __name__ == "__main__":
    main()
