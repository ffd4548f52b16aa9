"""Runs the same work through several engines, in turn in one run: tokens per second, latencies, time between
tokens, memory.

    python -m benchmarks.peers --shapes S,M --rounds 5 --json benchmarks/results/peers.json

    python -m benchmarks.peers --shapes SmolLM2 --weights same,int8,int4 --in-flight 1,4,16 --json PATH

The work is `workload.json` (64 requests, closed loop, 16 in flight, greedy, EOS ignored), or with `--work
longer` one with prompts of up to 1,500 tokens and answers of up to 600; with fewer in flight its first
requests. The models have random weights and the Qwen2 architecture, and are made here; `SmolLM2` is the
published one that is served where none is named, and of each engine it is also shown how far it agrees with
float32 on a text (`common/scored_text.py`). With `--weights` engines are compared in formats of 8 and 4 bits,
each in its own: those of one width at the same time, one width after the other. All engines have the same
cores, large pages, a pool of 1 GiB for KV, and 512 tokens per step. Every engine runs in its own process and
waits while another one works; the order rotates from round to round. Engines that can't be installed in the
project's environment get their own, made on first use (see README.md in this folder). An engine that can't be
installed or started is named and left out.

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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.common.command_line import command_line
from benchmarks.common.models import (
    SHAPES,
    VOCABULARY,
    make_model,
    make_published,
    make_tokenizer,
)
from benchmarks.common.scored_text import TEXTS, Scores, TextAgreement, text_agreement
from benchmarks.common.work import KV_POOL_GIB, PEER_TOKEN_BUDGET, PUBLISHED, WORKS, load_work
from benchmarks.peers.check import Agreement, SameTokens, as_rows
from benchmarks.peers.process import EngineProcess, prepare_model
from benchmarks.peers.report import (
    Case,
    Row,
    fields_of,
    line_of,
    ratios,
    row_of,
    table,
    write_json,
    write_plot,
)
from benchmarks.peers.setups import (
    DEFAULT,
    ON_PUBLISHED,
    SETUPS,
    Setup,
    default_engines,
    setups_of,
    variants,
)

TRIAL_ROUNDS = 2
# before each pass: some engines' threads still poll for a while after their pass (vLLM's worker: a second)
REST_S = 1.5
WEIGHTS = ("same", "int8", "int4")
MOST_IN_FLIGHT = 16
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

    def __init__(self, case: Case, directory: Path, left_out: LeftOut) -> None:
        self.versions: dict[str, dict[str, str]] = {}  # of the packages in each engine's environment
        self._case, self._directory, self._left_out = case, directory, left_out
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
                prepare_model(setup, self._directory)
                case = self._case
                self._processes[name] = EngineProcess(setup, self._directory, case.dtype, case.work)
                self.versions[name] = self._processes[name].versions
                print(f"{case.shape} {name}: up after {time.monotonic() - started_s:.0f} s", flush=True)
            except CANNOT as error:
                self._left_out.add(f"{self._case.shape}: {name}", error)

    def score(self, texts: Sequence[Sequence[int]]) -> Iterator[tuple[str, list[Scores]]]:
        """Of each engine that tells scores."""
        for name in list(self._processes):
            try:
                found = self._processes[name].score(texts)
            except RuntimeError as error:
                self._drop(name, error)
                continue
            if found:
                yield name, found

    def run(self, rounds: int) -> list[Row]:
        """Runs a warm-up and `rounds` passes of every engine. Each round begins with another engine."""
        rows: list[Row] = []
        for number in range(rounds + 1):
            for name in rotated(list(self._processes), number):
                try:
                    passes = [self._pass(name, number, in_flight) for in_flight in self._case.at_once]
                except RuntimeError as error:
                    self._drop(name, error)
                    continue
                speeds = ", ".join(f"{row.tok_s:.1f}" for row in passes)
                when = f"round {number}" if number else "warm-up"
                print(f"{self._case.shape} {name}: {when}, {speeds} tokens/s", flush=True)
                rows += passes if number else []
        return [row for name in self._processes for row in rows if row.engine == name]

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def _pass(self, name: str, number: int, in_flight: int) -> Row:
        work = self._case.work.at_once(in_flight).shifted(number, VOCABULARY)
        time.sleep(REST_S)
        with busy(self._case.num_busy):
            timings, peak = self._processes[name].run(work)
        if [len(timing.tokens) for timing in timings] != [job.max_tokens for job in work.jobs]:
            raise RuntimeError("it returned more or fewer tokens than requested")
        return row_of(name, self._case, in_flight, number, timings, peak)

    def _drop(self, name: str, error: object) -> None:
        self._left_out.add(f"{self._case.shape}: {name}", error)
        self._processes.pop(name).close()


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

    def __init__(self, case: Case, rounds: int, token_budgets: list[int], tries: bool) -> None:
        """`case`: of any shape and weights."""
        self.rows: list[Row] = []
        self.left_out = LeftOut()
        self.versions: dict[str, dict[str, str]] = {}
        self.agreements: list[Agreement] = []
        self.of_text: dict[tuple[str, str], TextAgreement] = {}  # by shape and engine
        # by shape and variant: tokens per second of each round
        self.trials: dict[str, dict[str, list[float]]] = {}
        self.chosen: dict[str, str] = {}
        self._case, self._rounds, self._token_budgets, self._tries = case, rounds, token_budgets, tries
        self._refused: set[str] = set()
        self._best: dict[tuple[str, str], dict[str, str]] = {}  # variables by shape and worker

    def compare_tokens(self, engines: Iterable[str]) -> None:
        """Leaves out those whose float32 tokens are not the reference's."""
        with tempfile.TemporaryDirectory() as directory:
            print("greedy tokens of the bundled model: the reference", flush=True)
            same = SameTokens(Path(directory))
            for name in engines:
                try:
                    found = [
                        same.compare(SETUPS[name], dtype)
                        for dtype in dict.fromkeys(("float32", self._case.dtype))
                    ]
                except CANNOT as error:
                    self._refuse(name, error)
                    continue
                self.agreements += found
                print("\n".join(map(str, found)), flush=True)
                if any(agreement.is_refused for agreement in found):
                    self._refuse(name, "its float32 tokens are not the reference's")

    def measure(self, shape: str, engines: Iterable[str], weights: str = "same") -> None:
        """Weights that engines round themselves, they get in float32."""
        names = [name for name in engines if name not in self._refused]
        setups = setups_of(names, self._token_budgets, weights)
        case = replace(self._case, shape=shape, weights=weights)
        with tempfile.TemporaryDirectory() as made:
            directory = Path(made)
            print(f"{shape}, weights {weights}: making the model", flush=True)
            make(shape, case.dtype if weights == "same" else "float32", directory)
            chosen = [
                replace(each, variables=self._best_variant(case, each.worker, directory)) for each in setups
            ]
            with self._engines(case, directory) as peers:
                peers.start(chosen)
                if shape == PUBLISHED:
                    self._score(peers)
                self.rows += peers.run(self._rounds)

    def about(self) -> dict[str, Any]:
        """Returns the fields of the JSON other than the rows."""
        return {
            "work": fields_of(self._case.work),
            "rounds": self._rounds,
            "busy_processes": self._case.num_busy,
            "every_engine": {
                "kv_pool_gib": KV_POOL_GIB,
                "token_budget": PEER_TOKEN_BUDGET,
                "large_pages": "GLIBC_TUNABLES",
            },
            "same_tokens": as_rows(self.agreements),
            "text_agreement": [
                {"shape": shape, "engine": engine, **asdict(found)}
                for (shape, engine), found in self.of_text.items()
            ],
            "trials_tok_s": self.trials,
            "chosen": self.chosen,
            "left_out": self.left_out.reasons,
            "environments": self.versions,
        }

    def _score(self, peers: Peers) -> None:
        texts, reference = self._reference
        for name, scores in peers.score(texts):
            found = self.of_text[PUBLISHED, name] = text_agreement(reference, scores)
            print(f"{name}: {found}", flush=True)

    @cached_property
    def _reference(self) -> tuple[list[list[int]], list[Scores]]:
        """The texts as the published model's tokens, and what transformers makes of them in float32."""
        with tempfile.TemporaryDirectory() as made:
            make(PUBLISHED, "float32", Path(made))
            tokenizer = Tokenizer.from_file(f"{made}/tokenizer.json")
            texts = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
            process = EngineProcess(SETUPS["transformers"], Path(made), "float32", self._case.work)
            try:
                return texts, process.score(texts)
            finally:
                process.close()

    def _best_variant(self, case: Case, worker: str, directory: Path) -> dict[str, str]:
        """Returns the variables of the variant with the most tokens per second in a short trial, once for
        each shape.
        """
        key = case.shape, worker
        if key not in self._best:
            self._best[key] = self._tried(case, worker, directory)
        return self._best[key]

    def _tried(self, case: Case, worker: str, directory: Path) -> dict[str, str]:
        try:
            found = variants(SETUPS[worker])
        except CANNOT:
            return {}
        if len(found) == 1 or not self._tries:
            return found[0].variables
        print(f"{case.shape} {worker}: a trial of {len(found)} variants", flush=True)
        work = replace(case.work, jobs=case.work.jobs[: len(case.work.jobs) // 2])
        with self._engines(replace(case, work=work, at_once=(work.in_flight,)), directory) as peers:
            peers.start(found)
            rows = peers.run(TRIAL_ROUNDS)
        speeds = {
            name: [row.tok_s for row in rows if row.engine == name]
            for name in dict.fromkeys(row.engine for row in rows)
        }
        self.trials |= {case.shape: speeds}
        if not speeds:
            return found[0].variables
        best = max(speeds, key=lambda name: sum(speeds[name]))
        self.chosen[f"{case.shape}: {worker}"] = best
        print(f"{case.shape}: chosen: {best}", flush=True)
        return next(each.variables for each in found if best.endswith(each.variant))

    @contextmanager
    def _engines(self, case: Case, directory: Path) -> Iterator[Peers]:
        peers = Peers(case, directory, self.left_out)
        try:
            yield peers
        finally:
            peers.close()
            self.versions |= peers.versions

    def _refuse(self, name: str, why: object) -> None:
        self._refused.add(name)
        self.left_out.add(name, why)


def make(shape: str, dtype: str, directory: Path) -> None:
    if shape == PUBLISHED:
        make_published(dtype, directory)
    else:
        make_model(shape, dtype, directory)
        make_tokenizer(directory)


def names_of(known: Iterable[str], asked: str) -> list[str]:
    names = asked.split(",")
    if wrong := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)!r} is not one of {', '.join(known)}")
    return names


def shape_names(asked: str) -> list[str]:
    return names_of((*SHAPES, PUBLISHED), asked)


def widths(asked: str) -> list[str]:
    return names_of(WEIGHTS, asked)


def in_flight(asked: str) -> tuple[int, ...]:
    found = tuple(int(count) for count in asked.split(","))
    if not all(0 < count <= MOST_IN_FLIGHT for count in found):
        raise argparse.ArgumentTypeError(f"{asked!r}: from 1 to {MOST_IN_FLIGHT}, as the pools for KV hold")
    return found


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
    parser.add_argument(
        "--shapes", default="S,M", type=shape_names, help=f"of {', '.join(SHAPES)}, {PUBLISHED}"
    )
    parser.add_argument(
        "--only",
        type=engine_names,
        help=f"engines, of {', '.join(SETUPS)}; default {', '.join(DEFAULT)}, on M without gapless_torch; on"
        f" {PUBLISHED} {', '.join(ON_PUBLISHED)}",
    )
    parser.add_argument(
        "--weights", default=["same"], type=widths, help="how they are kept, of same, int8, int4; same"
    )
    parser.add_argument(
        "--in-flight", default=(MOST_IN_FLIGHT,), type=in_flight, help="requests at once; 1,4,16"
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
    case = Case("", asked.dtype, work, at_once=asked.in_flight, num_busy=asked.busy)
    found = Measurement(case, rounds, asked.token_budgets, tries)
    engines = {shape: asked.only or default_engines(shape) for shape in asked.shapes}
    if asked.check:
        found.compare_tokens(dict.fromkeys(name for names in engines.values() for name in names))
    for (shape, names), weights in product(engines.items(), asked.weights):
        found.measure(shape, names, weights)
        if asked.json:
            write_json(asked.json, found.rows, found.about())
    if asked.plot and found.rows:
        write_plot(asked.plot, found.rows)
    for name, why in found.left_out.reasons.items():
        print(f"left out: {name}: {why}")
    for name, ratio in ratios(found.rows).items():
        print(f"{name}: {ratio}")
    print(line_of(work))
    print(table(found.rows, found.of_text) if found.rows else "nothing was measured")


if __name__ == "__main__":
    main()
