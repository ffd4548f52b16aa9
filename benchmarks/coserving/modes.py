"""The ways to share two processors between requests and training that `coserving` compares, and the
processes that each of them needs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.coserving import process
from benchmarks.coserving.counts import Marks
from benchmarks.coserving.requests import Times
from benchmarks.coserving.server import Run
from benchmarks.coserving.specs import Model, Spec
from python_backends.linux.large_pages import with_large_pages

CORES = tuple(sorted(os.sched_getaffinity(0)))
HALVES = (CORES[: max(1, len(CORES) // 2)], CORES[len(CORES) // 2 :])
ALL = len(CORES)
PRELOADED = ["peft", "benchmarks.coserving.process"]


@dataclass(frozen=True, slots=True)
class Mode:
    """`server` and `trainer` work at the same time, if both are there."""

    server: Spec | None = None
    trainer: Spec | None = None


SERVE, TRAIN = Spec("serve", ALL), Spec("train", ALL)
MODES = {
    "serve_only": Mode(SERVE),
    "train_only": Mode(trainer=TRAIN),
    "train_only_peft": Mode(trainer=Spec("peft", ALL)),
    "isolation": Mode(
        Spec("serve", len(HALVES[0]), HALVES[0]), trainer=Spec("train", len(HALVES[1]), HALVES[1])
    ),
    "temporal_64": Mode(Spec("serve", ALL, training="temporal_64")),
    "temporal_128": Mode(Spec("serve", ALL, training="temporal_128")),
    "spatial": Mode(SERVE, TRAIN),
    "coserving": Mode(Spec("serve", ALL, training="coserving")),
}


class Process:
    """One of the processes, seen from here."""

    def __init__(self, context: Any, model: Model, spec: Spec) -> None:
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=process.main, args=(theirs, model, spec), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> Any:
        """The settings that it has chosen, if it had a choice. EOFError if it has died."""
        return self._pipe.recv()

    def call(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, arguments))
        return self._pipe.recv()

    @contextlib.contextmanager
    def training(self) -> Iterator[list[tuple[Marks, float]]]:
        """It trains until the block ends; then the list has its marks and its peak of memory, in GiB."""
        found: list[tuple[Marks, float]] = []
        self._pipe.send((process.TRAIN, ()))
        try:
            yield found
        finally:
            self._pipe.send((process.STOP, ()))
            found.append(self._pipe.recv())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send((process.END, ()))
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()


@dataclass(frozen=True, slots=True)
class Measured:
    """One mode at one load in one round. Token rates are a second's."""

    run: Run | None
    forward_tok_s: float
    trained_tok_s: float
    peak_rss_gib: float


class Processes:
    """Those of the modes `names`; each waits while it has nothing to do."""

    def __init__(self, model: Model, names: list[str]) -> None:
        os.environ.update(with_large_pages(os.environ))  # the processes inherit it
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        specs = {spec for name in names for spec in (MODES[name].server, MODES[name].trainer) if spec}
        self._by_spec = {spec: Process(context, model, spec) for spec in specs}
        self.chosen = {spec.kind: each.ready() for spec, each in self._by_spec.items()}

    def close(self) -> None:
        for each in self._by_spec.values():
            each.close()

    def server(self, name: str) -> Process:
        spec = MODES[name].server
        assert spec is not None
        return self._by_spec[spec]

    def measure(self, name: str, tokens_s: float, times: Times, slo_s: float, seed: int) -> Measured:
        """`tokens_s`: the output tokens a second that requests ask for."""
        mode = MODES[name]
        trainer = self._by_spec[mode.trainer] if mode.trainer else None
        if mode.server is None:
            assert trainer is not None
            return train_alone(trainer, times)
        if trainer is None:
            run: Run = self.server(name).call("serve", tokens_s, times, slo_s, seed)
            return Measured(run, *run.marks.rates(run.begin_s, run.end_s), run.peak_rss_gib)
        with trainer.training() as found:
            run = self.server(name).call("serve", tokens_s, times, slo_s, seed)
        marks, peak_gib = found[0]
        return Measured(run, *marks.rates(run.begin_s, run.end_s), run.peak_rss_gib + peak_gib)


def train_alone(trainer: Process, times: Times) -> Measured:
    began_s = time.perf_counter()
    with trainer.training() as found:
        time.sleep(times.settle_s + times.window_s)
    marks, peak_gib = found[0]
    begin_s = began_s + times.settle_s
    return Measured(None, *marks.rates(begin_s, max(begin_s + times.window_s, marks.times_s[-1])), peak_gib)
