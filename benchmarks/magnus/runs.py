"""The runs of `magnus`: one policy at one rate of arrivals, on an existing engine.

The clock is the machine's, but it skips times without waiting or running requests. A static batch answers all
its requests when the longest has ended; continuous batching answers each one at its own end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.magnus.prediction import BatchSeconds, Lengths
from benchmarks.magnus.requests import Ask
from benchmarks.magnus.static_batching.batches import STATIC_POLICIES, BatchLimits
from benchmarks.magnus.static_batching.mode import Served, StaticMode
from benchmarks.magnus.static_batching.plans import NO_TOKENS, BatchPlans, OutOfMemoryError
from python_backends.engine.protocol import Engine
from python_backends.nouns.request import Finish, ModelLimits
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import SchedulingSettings

TOKEN_BUDGET = 256
# reserves max_tokens for every request, in order of arrival
CONTINUOUS = SchedulingSettings(policy="fcfs")
NUM_TIMED_STEPS = 24


@dataclass(frozen=True, slots=True)
class Row:
    policy: str
    rate: float  # requests per second that arrive
    request_throughput: float
    mean_response_s: float
    p95_response_s: float
    valid_tok_s: float
    total_tok_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """Requests and their times of arrival."""

    asked: Sequence[Ask]
    arrivals_s: NDArray[np.float64]
    rate: float
    max_tokens: int
    now: Callable[[], float] = time.perf_counter  # seconds by the engine's clock


@dataclass(slots=True)
class Run:
    """The measurements of one run."""

    policy: str
    rate: float
    responses_s: list[float] = field(default_factory=list)  # of the requests that were answered
    num_valid_tokens: int = 0
    num_tokens: int = 0
    num_batches: int = 0
    num_out_of_memory: int = 0
    num_failed: int = 0
    ended_s: float = 0.0

    @property
    def row(self) -> Row:
        return Row(
            self.policy,
            self.rate,
            len(self.responses_s) / self.ended_s,
            float(np.mean(self.responses_s)),
            float(np.percentile(self.responses_s, 95)),
            self.num_valid_tokens / self.ended_s,
            self.num_tokens / self.ended_s,
        )


class Clock:
    """A clock: seconds since its start, including skipped ones."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._start_s = now()

    def __call__(self) -> float:
        return self._now() - self._start_s

    def skip_to(self, at_s: float) -> None:
        self._start_s -= max(0.0, at_s - self() + 1e-9)


def poisson_arrivals(count: int, rate: float, seed: int) -> NDArray[np.float64]:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def run_static(
    name: str,
    policy: str,
    work: Work,
    engine: Engine,
    limits: BatchLimits,
    knowledge: tuple[Lengths, BatchSeconds] | None,
) -> Run:
    """Runs a static policy. `knowledge` is for the policies that predict."""
    run, clock, num_come = Run(name, work.rate), Clock(work.now), 0
    lengths, seconds = knowledge or (None, None)
    static = StaticMode(
        engine, STATIC_POLICIES[policy], limits, seconds or (lambda shapes: np.ones(len(shapes))), clock
    )
    with tqdm(
        total=len(work.asked), desc=f"{name} at {work.rate:.1f}/s", unit="request", disable=None
    ) as bar:
        while num_come < len(work.asked) or static.num_waiting:
            if not static.num_waiting:
                clock.skip_to(work.arrivals_s[num_come])
            come = int(np.searchsorted(work.arrivals_s, clock(), side="right"))
            expected = lengths.expected_tokens(range(num_come, come)) if lengths else [1] * (come - num_come)
            for place, tokens in zip(range(num_come, come), expected, strict=True):
                static.submit(
                    work.asked[place].request(place, work.max_tokens), tokens, work.arrivals_s[place]
                )
            num_come = come
            if not static.num_waiting:
                continue
            served = static.turn()
            _book(run, served, work, clock())
            _learn(served, lengths, seconds, clock())
            bar.update(len(served.answers))
    run.ended_s = clock()
    return run


def _book(run: Run, served: Served, work: Work, now_s: float) -> None:
    run.num_batches += 1
    run.num_out_of_memory += not served.answers or served.answers[0].finish is Finish.ERROR
    run.num_tokens += served.num_tokens
    for answer in served.answers:
        if answer.finish is Finish.ERROR:
            run.num_failed += 1
            continue
        run.num_valid_tokens += len(answer.tokens)
        run.responses_s.append(now_s - float(work.arrivals_s[answer.request_id]))


def _learn(served: Served, lengths: Lengths | None, seconds: BatchSeconds | None, now_s: float) -> None:
    if lengths is None or seconds is None or not served.answers:
        return
    for answer in served.answers:
        lengths.ended(answer.request_id, len(answer.tokens))
    seconds.finished(served)
    lengths.relearn_if_due(now_s)
    seconds.relearn_if_due(now_s)


def continuous_scheduler(limits: ModelLimits, num_slots: int) -> SlotScheduler:
    """Returns CCB's scheduler: this many rows; a request is admitted if there are KV blocks for its
    max_tokens.
    """
    return SlotScheduler(limits.changed(num_slots=num_slots), TOKEN_BUDGET, CONTINUOUS)


def run_continuous(name: str, work: Work, engine: Engine, num_slots: int) -> Run:
    """Runs conservative continuous batching: as many rows as always fit in memory. A request that ends leaves
    at once, and the next one starts.
    """
    run, clock, num_come = Run(name, work.rate), Clock(work.now), 0
    scheduler = continuous_scheduler(engine.limits, num_slots)
    with tqdm(
        total=len(work.asked), desc=f"{name} at {work.rate:.1f}/s", unit="request", disable=None
    ) as bar:
        while num_come < len(work.asked) or not scheduler.is_idle:
            if scheduler.is_idle:
                clock.skip_to(work.arrivals_s[num_come])
            come = int(np.searchsorted(work.arrivals_s, clock(), side="right"))
            for place in range(num_come, come):
                scheduler.submit(work.asked[place].request(place, work.max_tokens), NO_TOKENS)
            num_come = come
            plan = scheduler.plan()
            if plan is None:
                continue
            engine.launch(plan)
            events = scheduler.apply(plan, engine.collect())
            ended = events.request_ids[events.finishes != Finish.RUNNING]
            run.num_tokens += len(events.tokens)
            run.responses_s += (clock() - work.arrivals_s[ended]).tolist()
            bar.update(len(ended))
    run.num_valid_tokens, run.ended_s = run.num_tokens, clock()
    return run


def measure_batches(
    work: Work, lengths: NDArray[np.int64], engine: Engine, limits: BatchLimits
) -> list[Served]:
    """Serves batches of training requests, of all sizes and with similar lengths, for the first estimator of
    serving time.
    """
    order = np.argsort(lengths + [len(ask.prompt) for ask in work.asked], kind="stable")
    rng, measured = np.random.default_rng(0), []
    sizes = [size for size in (1, 2, 4, 7, 12, 20, 32, 48) if size <= min(limits.num_slots, len(order))]
    for size in tqdm(
        [size for size in sizes for _ in range(6)], desc="batches to learn from", unit="batch", disable=None
    ):
        first = int(rng.integers(0, len(order) - size + 1))
        limits = replace(limits, fixed_size=size)
        static = StaticMode(
            engine, STATIC_POLICIES["vs"], limits, lambda shapes: np.ones(len(shapes)), work.now
        )
        for place in order[first : first + size].tolist():
            static.submit(work.asked[place].request(place, work.max_tokens), int(lengths[place]), 0.0)
        served = static.turn()
        if served.answers:
            measured.append(served)
    return measured


def step_times_ms(work: Work, engine: Engine) -> dict[str, float]:
    """Returns median times of decode steps by number of rows, and of prefill by token. Prompts have medium
    length.
    """
    times: dict[str, float] = {}
    sizes = np.array([len(ask.prompt) for ask in work.asked])
    order = np.argsort(np.abs(sizes - np.median(sizes)), kind="stable").tolist()
    for rows in (1, 7, 16, 32, 48, 64):
        requests = [work.asked[place].request(place, work.max_tokens) for place in order[:rows]]
        plans, seconds = BatchPlans(requests, engine.limits), []
        try:
            for _ in range(NUM_TIMED_STEPS):
                started_s = work.now()
                engine.launch(plans.plan())
                engine.collect()
                seconds.append(work.now() - started_s)
        except OutOfMemoryError:
            break
        times[f"{rows} rows"] = float(np.median(seconds[1:])) * 1e3
        times["a prompt token"] = seconds[0] * 1e3 / sum(len(request.prompt) for request in requests)
    return times
