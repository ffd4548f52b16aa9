"""The process of `coserving` that serves, with or without training.

Loop, engine and trainer are the server's own. The wire and Triton are left out, so that what is compared are
the ways to divide the processors.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.models import VOCABULARY
from benchmarks.common.work import clear_peak
from benchmarks.coserving.counts import Marks, counted, peak_rss_gib
from benchmarks.coserving.requests import NONE, Arrivals, OpenLoop, Seen, Times, arrivals, at_once, seen
from benchmarks.coserving.specs import Model, Spec, endless_job, settings_of
from benchmarks.coserving.temporal import Temporal
from python_backends.engine.protocol import Trains
from python_backends.finetuning.jobs import Job
from python_backends.instance.build import build, build_training, spare_time
from python_backends.instance.loop import Instance, Parts
from python_backends.instance.spare_time import SpareTime, SpareWork
from python_backends.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What one run has measured in its window [begin_s, end_s)."""

    seen: Seen
    begin_s: float
    end_s: float
    busy_share: float
    marks: Marks
    peak_rss_gib: float


class Server:
    def __init__(self, model: Model, spec: Spec) -> None:
        self._model, self._spec = model, spec
        self._counts = counted(model.num_layers)
        self._scheduler, self._engine = build(settings_of(model, spec))
        self._closed_last = ExitStack()
        self._spare_time = SpareTime()

    def capacity(self, warm_s: float, seconds: float) -> float:
        """Output tokens a second with all slots taken and requests waiting, without training."""
        instance, clients = self._instance(at_once(32 * self._scheduler.limits.num_slots, VOCABULARY, seed=0))
        until_s = time.perf_counter() + warm_s + seconds
        while time.perf_counter() < until_s:
            instance.turn()
        return self._end(clients, until_s - seconds, until_s).seen.output_tok_s

    def serve(self, tokens_s: float, times: Times, slo_s: float, seed: int) -> Run:
        """Requests that ask for `tokens_s` output tokens a second."""
        self._begin_training(slo_s, times.warm_up_s)
        clear_peak()
        instance, clients = self._instance(arrivals(tokens_s, times, VOCABULARY, seed), trains=True)
        until_s = time.perf_counter() + times.settle_s + times.window_s + times.most_after_s
        while not clients.has_answered and time.perf_counter() < until_s:
            instance.turn()
        begin_s = clients.began_s + times.settle_s
        return self._end(clients, begin_s, begin_s + times.window_s)

    def burst(self, count: int, idle_s: float, slo_s: float, seed: int) -> Run:
        """`count` requests at once, after `idle_s` seconds with nothing but training."""
        self._begin_training(slo_s, idle_s)
        self._train_for(idle_s)
        instance, clients = self._instance(at_once(count, VOCABULARY, seed), trains=True)
        while not clients.is_done:
            instance.turn()
        return self._end(clients, clients.began_s, time.perf_counter())

    def _instance(self, asked: Arrivals, trains: bool = False) -> tuple[Instance, OpenLoop]:
        clients = OpenLoop(asked)
        spare = self._spare_time if trains else SpareTime()
        instance = Instance(
            self._scheduler, self._engine, clients, lambda _: None, parts=Parts(spare_time=spare)
        )
        return instance, clients

    def _end(self, clients: OpenLoop, begin_s: float, end_s: float) -> Run:
        """Gives up the requests that still run."""
        marks = self._counts.take()
        self._scheduler.cancel_all()
        instance, _ = self._instance(NONE)
        while not self._scheduler.is_idle:
            instance.turn()
        return Run(
            seen=seen(clients.timings, clients.measured, begin_s, end_s),
            begin_s=begin_s,
            end_s=end_s,
            busy_share=1 - clients.waited_s(begin_s, end_s) / (end_s - begin_s),
            marks=marks,
            peak_rss_gib=peak_rss_gib(),
        )

    def _begin_training(self, slo_s: float, warm_up_s: float) -> None:
        if self._spec.training and not self._spare_time.has_work:
            directory = Path(self._closed_last.enter_context(tempfile.TemporaryDirectory()))
            settings = settings_of(self._model, self._spec, slo_s)
            self._spare_time = spare_time(settings, self._work_of(endless_job(directory), settings))
            self._train_for(warm_up_s)

    def _work_of(self, job: Job, settings: Settings) -> SpareWork:
        mode, _, steps = self._spec.training.partition("_")
        if mode == "temporal":
            assert isinstance(self._engine, Trains)
            return Temporal(self._engine, self._scheduler.blocks, job, int(steps))
        training = build_training(settings, self._engine, self._scheduler)
        assert training is not None
        lock = self._closed_last.enter_context(ExitStack())
        lock.enter_context(job.locked())
        training.offer(job, lock)
        return training

    def _train_for(self, seconds: float) -> None:
        instance, _ = self._instance(NONE, trains=True)
        until_s = time.perf_counter() + seconds
        while self._spare_time.has_work and time.perf_counter() < until_s:
            instance.turn()
