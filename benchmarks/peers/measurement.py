"""Starts the engines that are compared, tries their variants, and measures those that can be: `python -m
benchmarks.peers`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.common.models import VOCABULARY, make_model, make_published, make_tokenizer
from benchmarks.common.scored_text import TEXTS, Scores, TextAgreement, text_agreement
from benchmarks.common.work import KV_POOL_GIB, PEER_TOKEN_BUDGET, PUBLISHED
from benchmarks.peers.check import Agreement, SameTokens, as_rows
from benchmarks.peers.process import EngineProcess, prepare_model
from benchmarks.peers.report import Case, Row, fields_of, row_of
from benchmarks.peers.setups import SETUPS, Setup, setups_of, variants

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
                    passes = [self._pass(name, number, place) for place in range(len(self._case.at_once))]
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

    def _pass(self, name: str, number: int, place: int) -> Row:
        """Pass `place` of round `number`: its prompts are in no other pass."""
        counts = self._case.at_once
        in_flight = counts[place]
        work = self._case.work.at_once(in_flight).shifted(number * len(counts) + place, VOCABULARY)
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

    def __init__(self, case: Case, rounds: int, tries: bool) -> None:
        """`case`: of any shape and weights."""
        self.rows: list[Row] = []
        self.left_out = LeftOut()
        self.versions: dict[str, dict[str, str]] = {}
        self.agreements: list[Agreement] = []
        self.of_text: dict[tuple[str, str], TextAgreement] = {}  # by shape and engine
        # by shape and variant: tokens per second of each round
        self.trials: dict[str, dict[str, list[float]]] = {}
        self.chosen: dict[str, str] = {}
        self._case, self._rounds, self._tries = case, rounds, tries
        self._refused: set[str] = set()
        self._best: dict[tuple[str, str], dict[str, str]] = {}  # variables by shape and engine

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
        setups = setups_of(names, weights)
        case = replace(self._case, shape=shape, weights=weights)
        with tempfile.TemporaryDirectory() as made:
            directory = Path(made)
            print(f"{shape}, weights {weights}: making the model", flush=True)
            make(shape, case.dtype if weights == "same" else "float32", directory)
            chosen = [
                replace(each, variables=self._best_variant(case, each.engine, directory)) for each in setups
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

    def _best_variant(self, case: Case, engine: str, directory: Path) -> dict[str, str]:
        """Returns the variables of the variant with the most tokens per second in a short trial, once for
        each shape.
        """
        key = case.shape, engine
        if key not in self._best:
            self._best[key] = self._tried(case, engine, directory)
        return self._best[key]

    def _tried(self, case: Case, engine: str, directory: Path) -> dict[str, str]:
        try:
            found = variants(SETUPS[engine])
        except CANNOT:
            return {}
        if len(found) == 1 or not self._tries:
            return found[0].variables
        print(f"{case.shape} {engine}: a trial of {len(found)} variants", flush=True)
        work = replace(case.work, jobs=case.work.jobs[: len(case.work.jobs) // 2])
        with self._engines(replace(case, work=work, at_once=(work.in_flight,)), directory) as peers:
            peers.start(found)
            rows = peers.run(TRIAL_ROUNDS)
        speeds = {
            name: [row.tok_s for row in rows if row.engine == name]
            for name in dict.fromkeys(row.engine for row in rows)
        }
        self.trials.setdefault(case.shape, {}).update(speeds)
        if not speeds:
            return found[0].variables
        best = max(speeds, key=lambda name: sum(speeds[name]))
        self.chosen[f"{case.shape}: {engine}"] = best
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
