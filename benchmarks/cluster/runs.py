"""Serves the requests of `cluster` by a virtual clock: the real stream table, router, moves and balancer
of the scheduler model, with simulated instances.

Messages take no time. A run ends when each request that counts has its first token.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from benchmarks.cluster.hosts import Agenda, Host, Machine, SimulatedCopier
from benchmarks.cluster.requests import BEGIN_S, MAX_MODEL_TOKENS, MOST_TOKENS, Doubles, Load, Work, draw_work
from python_backends.cluster.cluster import Cluster
from python_backends.cluster.router import Router
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load as Heartbeat
from python_backends.nouns.messages import FromInstance
from python_backends.nouns.moves import Adopted, MoveEnded, Refused, Reserved, Suspended
from python_backends.nouns.request import (
    QUANTILE_LEVELS,
    Feedback,
    Finish,
    LengthPrediction,
    Request,
    Sampling,
)
from python_backends.nouns.step import Evicted, Started, Tokens
from python_backends.settings import ClusterSettings, StreamSettings
from python_backends.streams.stream import Stream
from python_backends.streams.table import StreamTable
from python_backends.watching.cluster_state import ClusterState
from python_backends.watching.metrics import Metrics
from python_backends.wires.sessions import InstanceLost, InstanceMove, InstanceReady

LOOK_S = 0.25  # how often ended answers leave the table
LEAST_TOKENS = 8  # of an answer so far, if its time per token counts
SPREAD = 0.5  # of predicted lengths
NORMAL_QUANTILES = np.array([NormalDist().inv_cdf(level) for level in QUANTILE_LEVELS])
OVERLOAD = 3.0  # times the capacity
OVERLOAD_S = 120.0
NUM_ALONE = 600  # requests of a single instance
NUM_WAITING = 4  # smallest number of requests that wait there
START_S = 20.0  # until a new instance is ready
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """The results of the n counted requests."""

    ttft_s: Doubles  # [n]
    tpot_s: Doubles  # [n] seconds per token after the first; not a number: too few tokens
    latency_s: Doubles  # [n] from the arrival to the last token of the run
    is_high: np.ndarray[tuple[int], np.dtype[np.bool_]]  # [n]
    num_evictions: int
    moves: Counter[str]  # by outcome; completed ones include requests that moved without blocks
    num_copied: int  # completed moves with blocks


def pooled(runs: Sequence[Served]) -> Served:
    """Returns the requests of all `runs` together."""
    return Served(
        ttft_s=np.concatenate([each.ttft_s for each in runs]),
        tpot_s=np.concatenate([each.tpot_s for each in runs]),
        latency_s=np.concatenate([each.latency_s for each in runs]),
        is_high=np.concatenate([each.is_high for each in runs]),
        num_evictions=sum(each.num_evictions for each in runs),
        moves=sum((each.moves for each in runs), Counter()),
        num_copied=sum(each.num_copied for each in runs),
    )


class Front:
    """The scheduler model, without clients."""

    def __init__(
        self,
        settings: ClusterSettings,
        agenda: Agenda,
        hosts: Sequence[Host],
        count: int,
        state: ClusterState | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.last_s = np.zeros(count)  # when the last token of each request arrived
        self._agenda = agenda
        self._hosts: dict[int, Host] = {}
        self._news: deque[tuple[int, FromInstance]] = deque()
        self._router = Router(settings)
        streams = StreamSettings(max_open=1 << 20, max_queued_tokens=1 << 40)
        self.table = StreamTable(streams, self._now_ns, lambda words: 4, self.metrics, self._router)
        self._cluster = Cluster(settings, self._router, self.table, self.metrics, agenda.clock, state)
        for host in hosts:
            self.ready(host)

    @property
    def balance_every_s(self) -> float:
        return self._router.policy.balance_every_s

    @property
    def wanted(self) -> frozenset[int]:
        """The instances that should run."""
        return self._cluster.wanted

    def ready(self, host: Host) -> None:
        self._hosts[host.number] = host
        host.say = self.hear
        self._router.ready(host.number, host.scheduler.limits)
        self.table.instance_ready(host.number)
        self._cluster.ready(InstanceReady(host.number, host.hello))

    def ended(self, number: int) -> None:
        """That of an instance that should run no more."""
        del self._hosts[number]
        self._cluster.lost(InstanceLost(number))

    def accept(self, request: Request) -> Stream:
        refusal = self.table.accept(request, None)
        stream = self.table.find(request.request_id)
        assert stream is not None, refusal
        return stream

    def hear(self, number: int, messages: Sequence[FromInstance]) -> None:
        self._news.extend((number, message) for message in messages)

    def turn(self) -> None:
        """Handles messages and sends new ones to the instances until there are no more."""
        while True:
            while self._news:
                self._take(*self._news.popleft())
            self._cluster.look()
            outbox = self.table.outbox()
            for number, messages in outbox.items():
                self._hosts[number].take(messages)
            for number in outbox:
                self._hosts[number].turn()
            if not self._news:
                return

    def answer(self) -> None:
        """Removes streams that have ended from the table; confirms its windows at once."""
        for outgoing in self.table.due():
            if outgoing.window is not None:
                self.table.handed_over(outgoing, self._now_ns())
                self.table.feedback(
                    Feedback(outgoing.request_id, outgoing.window.start + len(outgoing.window.tokens))
                )
        self.table.take_ended()

    def _take(self, number: int, message: FromInstance) -> None:
        if isinstance(message, Tokens):
            self.last_s[message.request_ids] = self._agenda.now_s
            self.table.tokens(message)
        elif isinstance(message, Heartbeat):
            if number in self._hosts:  # it has not ended
                limits = self._hosts[number].scheduler.limits
                self._router.heard(InstanceLoad(number, limits, message))
        elif isinstance(message, Started):
            self.table.started(message)
        elif isinstance(message, Evicted):
            self.table.evicted(message)
        elif isinstance(message, Reserved | Refused | Suspended | Adopted | MoveEnded):
            self._cluster.heard(InstanceMove(number, message))

    def _now_ns(self) -> int:
        return int(self._agenda.now_s * SECOND_NS) + 1


def request_of(work: Work, number: int) -> Request:
    """Returns a request whose prompt repeats one token of its own, so that no other prefix is found."""
    length = int(work.prompts[number])
    most = 0 if work.asks_exactly else min(MOST_TOKENS, MAX_MODEL_TOKENS - length - 1)
    return Request(
        request_id=number,
        prompt=np.full(length, number, np.int32),
        sampling=Sampling(max_tokens=max(most, int(work.answers[number]))),
        arrival_ns=int(work.due_s[number] * SECOND_NS) + 1,
        priority=int(work.priorities[number]),
    )


def _prediction(num_tokens: int, seed: int) -> LengthPrediction:
    """Returns the prediction for an answer of `num_tokens` tokens: wrong by a factor whose logarithm has the
    standard deviation SPREAD; the quantiles include this deviation.
    """
    median = num_tokens * np.exp(SPREAD * np.random.default_rng(seed).standard_normal())
    quantiles = median * np.exp(SPREAD * NORMAL_QUANTILES)
    return LengthPrediction(float(median * np.exp(SPREAD**2 / 2)), quantiles.astype(np.float32))


class Mark(NamedTuple):
    """The counts at a time."""

    at_s: float
    num_tokens: int
    row_s: float


class Running:
    """Which instances should run, and for how long they did: from the decision to start one."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers = frozenset(numbers)
        self.starting: set[int] = set()
        self._changes: list[tuple[float, int]] = [(0.0, len(self.numbers))]

    def change(self, numbers: frozenset[int], now_s: float) -> None:
        self.starting = (self.starting & numbers) | (numbers - self.numbers)
        self.numbers = numbers
        self._changes.append((now_s, len(numbers)))

    def mean(self, first_s: float, last_s: float) -> float:
        """Between two times."""
        ends_s = [*(at_s for at_s, _ in self._changes[1:]), last_s]
        seconds = [
            max(0.0, min(end_s, last_s) - max(at_s, first_s))
            for (at_s, _), end_s in zip(self._changes, ends_s, strict=True)
        ]
        counts = [count for _, count in self._changes]
        return float(np.dot(seconds, counts)) / (last_s - first_s)


class Simulation:
    def __init__(
        self, machine: Machine, settings: ClusterSettings, work: Work, num_instances: int = 0
    ) -> None:
        """`num_instances`: at the beginning; 0: those of the settings."""
        numbers = frozenset(range(num_instances or settings.instances))
        self._work = work
        self._agenda = agenda = Agenda()
        self._machine = machine
        self._copiers: dict[str, SimulatedCopier] = {}
        self._hosts = [self._new_host(number) for number in sorted(numbers)]
        self.running = Running(numbers)
        self._front = Front(settings, agenda, self._hosts, len(work), ClusterState(numbers))
        self._is_predicted = machine.scheduling.uses_lengths or settings.policy == "ours"
        self._every_s = min(LOOK_S, self._front.balance_every_s)
        self._streams: list[Stream] = []
        self._num_begun = work.num_before  # leading requests that have a first token, or don't count

    def run(self, until_ended: bool = False) -> Served:
        """Until each request has its first token, or, if `until_ended`, its last one."""
        agenda, front = self._agenda, self._front
        agenda.at(0.0, self._arrive)
        agenda.at(0.0, self._look)
        while self._num_begun < len(self._work) or (until_ended and len(front.table)):
            agenda.happen()
            front.turn()
            self._scale()
        return self._served()

    def capacity(self) -> Capacity:
        """Returns the throughput from the middle of the arrivals to their end."""
        due_s = self._work.due_s
        marks: list[Mark] = []
        for at_s in ((BEGIN_S + due_s[-1]) / 2, due_s[-1]):
            self._agenda.at(float(at_s), lambda: marks.append(self._mark()))
        self._agenda.at(0.0, self._arrive)
        self._agenda.at(0.0, self._look)
        while len(marks) < 2:
            self._agenda.happen()
            self._front.turn()
        return _between(marks[0], marks[1], self._work)

    def _new_host(self, number: int) -> Host:
        return Host(number, self._agenda, self._machine, self._work.answers, self._copiers)

    def _scale(self) -> None:
        """Starts and ends instances, as the launcher does."""
        wanted = self._front.wanted
        if wanted == self.running.numbers:
            return
        for number in self.running.numbers - wanted:
            if number not in self.running.starting:
                self._front.ended(number)
        for number in wanted - self.running.numbers:
            self._agenda.at(self._agenda.now_s + START_S, partial(self._started, number))
        self.running.change(wanted, self._agenda.now_s)

    def _started(self, number: int) -> None:
        if number in self.running.starting:
            self.running.starting.remove(number)
            host = self._new_host(number)
            self._hosts.append(host)
            self._front.ready(host)

    def _mark(self) -> Mark:
        tokens, rows = (
            sum(each) for each in zip(*((h.num_tokens, h.row_s) for h in self._hosts), strict=True)
        )
        return Mark(self._agenda.now_s, tokens, rows)

    def _arrive(self) -> None:
        """Accepts all requests that are due now."""
        due_s = self._work.due_s
        while len(self._streams) < len(due_s) and due_s[len(self._streams)] <= self._agenda.now_s:
            number = len(self._streams)
            self._streams.append(self._front.accept(request_of(self._work, number)))
            if self._is_predicted:
                self._front.table.predicted(number, _prediction(int(self._work.answers[number]), number))
        if len(self._streams) < len(due_s):
            self._agenda.at(float(due_s[len(self._streams)]), self._arrive)

    def _look(self) -> None:
        self._front.answer()
        while self._num_begun < len(self._streams) and self._streams[self._num_begun].first_token_ns:
            self._num_begun += 1
        self._agenda.at(self._agenda.now_s + self._every_s, self._look)

    def _served(self) -> Served:
        work, front = self._work, self._front
        counted = slice(work.num_before, None)
        first_s = np.array([stream.first_token_ns for stream in self._streams[counted]]) / SECOND_NS
        counts = np.array([len(stream.tokens) for stream in self._streams[counted]])
        tpot_s = (front.last_s[counted] - first_s) / np.maximum(1, counts - 1)
        assert not any(stream.finish not in (Finish.RUNNING, Finish.STOP) for stream in self._streams)
        return Served(
            ttft_s=first_s - work.due_s[counted],
            latency_s=front.last_s[counted] - work.due_s[counted],
            tpot_s=np.where(counts >= LEAST_TOKENS, tpot_s, np.nan),
            is_high=work.priorities[counted] > 0,
            num_evictions=sum(host.scheduler.num_evictions for host in self._hosts),
            moves=self._moves(),
            num_copied=sum(self._front.metrics.histograms["gapless_migration_seconds"].counts),
        )

    def _moves(self) -> Counter[str]:
        """By outcome."""
        found: Counter[str] = Counter()
        for (name, labels), number in self._front.metrics.counters.items():
            if name == "gapless_migrations_total":
                found[dict(labels)["outcome"]] += int(number)
        return found


@dataclass(frozen=True, slots=True)
class Capacity:
    """The throughput of all instances while requests always wait."""

    rate: float  # requests a second
    num_running: float  # on average


def measure_capacity(machine: Machine, settings: ClusterSettings, mean_tokens: float) -> Capacity:
    """Measures the cluster under the policy of `settings`, with OVERLOAD times the rate of one instance that
    always has a few waiting requests.
    """
    alone = _of_one(machine, draw_work(Load(1.0, 1.0, mean_tokens, 0), NUM_ALONE, seed=0))
    rate = OVERLOAD * settings.instances * alone.rate
    load = Load(rate, 1.0, mean_tokens, round(settings.instances * alone.num_running))
    work = draw_work(load, round(rate * OVERLOAD_S), seed=0)
    simulation = Simulation(machine, settings, work)
    return simulation.capacity()


def _of_one(machine: Machine, work: Work) -> Capacity:
    """Measures one instance in the second half of the time."""
    agenda = Agenda()
    host = Host(0, agenda, machine, work.answers, {})
    marks: list[Mark] = []
    num_sent = 0
    while num_sent < len(work) or host.scheduler.num_waiting:
        while num_sent < len(work) and host.scheduler.num_waiting < NUM_WAITING:
            host.scheduler.submit(request_of(work, num_sent), np.zeros(0, np.int32))
            num_sent += 1
        host.turn()
        marks.append(Mark(agenda.now_s, host.num_tokens, host.row_s))
        agenda.happen()
    middle = next(mark for mark in marks if mark.at_s >= marks[-1].at_s / 2)
    return _between(middle, marks[-1], work)


def _between(first: Mark, last: Mark, work: Work) -> Capacity:
    seconds = last.at_s - first.at_s
    mean = float(work.answers[work.num_before :].mean())
    return Capacity(
        (last.num_tokens - first.num_tokens) / seconds / mean, (last.row_s - first.row_s) / seconds
    )
