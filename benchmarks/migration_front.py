"""Two instance processes, and what the scheduler model is to them, without Triton: for migration.py."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from python_backends.cluster.move import MoveReason
from python_backends.cluster.moves import Moves
from python_backends.cluster.router import Router
from python_backends.linux.large_pages import with_large_pages
from python_backends.linux.process_group import end_group, start_group
from python_backends.nouns.messages import Failed
from python_backends.nouns.request import Feedback, Request, Sampling
from python_backends.nouns.step import Started, Tokens
from python_backends.settings import ROOT, ClusterSettings, Settings, StreamSettings, dump
from python_backends.streams.stream import Stream
from python_backends.streams.table import StreamTable
from python_backends.watching.metrics import Metrics
from python_backends.wires import InstanceLoad, InstanceLost, InstanceMove, InstanceReady, SchedulerEnd

NUM_INSTANCES = 2
READY_S = 300.0
STUCK_S = 120.0


@dataclass(frozen=True, slots=True)
class Moved:
    """A move that is done."""

    index: int  # of the first token that came from the destination
    gap_s: float  # between the last token of the source and that one


class Front:
    """Streams, router and moves over two instances; notes when each token came. All times are seconds of
    time.perf_counter.
    """

    def __init__(self, settings: Settings, directory: Path) -> None:
        dump(settings, directory / "settings.json")
        self.metrics = Metrics()
        self.times_s: defaultdict[int, list[float]] = defaultdict(list)  # of each token, by request
        self.answers: dict[int, list[int]] = {}  # of requests that have ended
        self._link = SchedulerEnd(directory, dead_after_s=600)
        self._router = Router(ClusterSettings(instances=NUM_INSTANCES, policy="round_robin"))
        self._table = StreamTable(
            StreamSettings(), time.monotonic_ns, lambda words: 4, self.metrics, self._router
        )
        submissions = self._table.submissions
        self._moves = Moves(submissions, self.metrics, self._router.step_s, time.monotonic)
        self._num_asked = self._num_ready = 0
        processors = sorted(os.sched_getaffinity(0))
        self._processes = [
            start_group(
                [sys.executable, "-m", "python_backends.instance", str(directory), str(number)],
                with_large_pages(os.environ),
                frozenset(processors[number::NUM_INSTANCES] or processors),
                cwd=ROOT,
            )
            for number in range(NUM_INSTANCES)
        ]
        self.until(lambda: self._num_ready == NUM_INSTANCES, READY_S)

    def close(self) -> None:
        for process in self._processes:
            end_group(process, wait_s=10)
        self._link.close()

    def ask(self, prompt: np.ndarray[Any, np.dtype[np.int32]], num_tokens: int) -> int:
        """Accepts a request for exactly `num_tokens` tokens; its number."""
        self._num_asked += 1
        sampling = Sampling(num_tokens, min_tokens=num_tokens)
        refusal = self._table.accept(Request(self._num_asked, prompt, sampling), None)
        assert not refusal, refusal
        return self._num_asked

    def cancel(self, number: int) -> None:
        """Its client is gone."""
        self._table.feedback(Feedback(number, 0, gone=True))
        self.until(lambda: number in self.answers)

    def num_tokens(self, number: int) -> int:
        return len(self.times_s[number])

    def until(self, condition: Callable[[], bool], most_s: float = STUCK_S) -> None:
        """Raises TimeoutError."""
        end_s = time.perf_counter() + most_s
        while not condition():
            if time.perf_counter() > end_s:
                raise TimeoutError(f"did not come true within {most_s:.0f} s")
            self.turn()

    def turn(self) -> None:
        """As a turn of the scheduler model's streams thread; the detokenizer confirms at once."""
        for news in self._link.receive(min(0.2, self._table.wait_s(), self._moves.wait_s())):
            self._take(news)
        self._moves.look()
        for instance, messages in self._table.outbox().items():
            self._link.send(instance, messages)
        for outgoing in self._table.due():
            if outgoing.window is not None:
                self._table.handed_over(outgoing, time.monotonic_ns())
                reached = outgoing.window.start + len(outgoing.window.tokens)
                self._table.feedback(Feedback(outgoing.request_id, reached, answered=True))
        for stream in self._table.take_ended():
            self.answers[stream.request_id] = list(stream.tokens)

    def move(self, number: int, way: str) -> Moved:
        """Moves a running request to the other instance, with its blocks or by computing it again. Raises
        RuntimeError if the move fails.
        """
        stream = self._stream(number)
        self.until(lambda: self._moves.can_leave(stream))
        source, destination = stream.instance, 1 - stream.instance
        if way == "recompute":
            index = len(stream.tokens)
            self._table.submissions.submit_elsewhere(stream, destination)
        else:
            self._moves.start(stream, destination, MoveReason.SHUFFLE)
            self.until(lambda: not len(self._moves))
            if stream.instance == source or stream.previous is None:
                raise RuntimeError(f"request {number} did not move: {self.outcomes()}")
            index = stream.previous.num_tokens
        self.until(lambda: self.num_tokens(number) > index)
        times_s = self.times_s[number]
        return Moved(index, times_s[index] - times_s[index - 1])

    def outcomes(self) -> dict[str, int]:
        return self.metrics.sums("gapless_migrations_total", "outcome")

    def _stream(self, number: int) -> Stream:
        stream = self._table.find(number)
        assert stream is not None, f"request {number} has ended"
        return stream

    def _take(self, news: Any) -> None:
        if isinstance(news, Tokens):
            self._take_tokens(news)
        elif isinstance(news, InstanceMove):
            self._moves.heard(news.instance, news.message)
        elif isinstance(news, InstanceLoad):
            self._router.heard(news.instance, news.load)
        elif isinstance(news, Started):
            self._table.started(news)
        elif isinstance(news, InstanceReady):
            self._router.ready(news.instance, news.limits)
            self._table.instance_ready(news.instance)
            self._moves.instance_ready(news.instance, news.hello)
            self._num_ready += 1
        elif isinstance(news, InstanceLost | Failed):
            raise RuntimeError(f"an instance failed: {news}")

    def _take_tokens(self, tokens: Tokens) -> None:
        numbers = set(tokens.request_ids.tolist())
        streams = {number: self._table.find(number) for number in numbers}
        self._table.tokens(tokens)
        now_s = time.perf_counter()
        for number, stream in streams.items():
            if stream is not None:
                times_s = self.times_s[number]
                times_s += [now_s] * (len(stream.tokens) - len(times_s))
