"""Requests in place of those of an instance's link, in a closed loop or at given times, and records of when
their tokens arrive.

Called by `triton_cost`, by `guided_cost`, by `coserving`, by `peers` and by the parts of `gpu`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.common.work import Job, Timing, Work
from python_backends.nouns.messages import Failed, Submit
from python_backends.nouns.request import Request, Sampling
from python_backends.nouns.step import Tokens

Range = tuple[int, int]  # smallest and largest, both included
NO_TOKENS = np.zeros(0, np.int32)


def jobs_of(count: int, vocabulary: int, prompts: Range, answers: Range, seed: int = 0) -> list[Job]:
    """Returns random prompts with random lengths in the ranges."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(prompts[0], prompts[1] + 1, count)
    counts = generator.integers(answers[0], answers[1] + 1, count)
    return [
        Job(generator.integers(0, vocabulary, length).tolist(), int(most))
        for length, most in zip(lengths, counts, strict=True)
    ]


def greedy(request_id: int, job: Job) -> Request:
    """A request of exactly its tokens."""
    return Request(request_id, np.array(job.prompt, np.int32), Sampling(max_tokens=job.max_tokens))


def requests_of(jobs: Sequence[Job]) -> list[Request]:
    return [greedy(number, job) for number, job in enumerate(jobs)]


class Recorder:
    """Records the tokens of requests and when they arrive. Their ids begin with `first_id`."""

    def __init__(self, first_id: int = 0) -> None:
        self.timings: list[Timing] = []
        self.num_ended = 0
        self._first_id = first_id

    def publish(self, messages: Sequence[Any]) -> None:
        """Raises RuntimeError if a request has failed."""
        now = time.perf_counter()
        for message in messages:
            if isinstance(message, Failed):
                raise RuntimeError(message.error)
            if isinstance(message, Tokens):
                self._record(message, now)

    def _record(self, tokens: Tokens, now: float) -> None:
        came = (tokens.request_ids.tolist(), tokens.tokens.tolist(), tokens.finishes.tolist())
        for request_id, token, finish in zip(*came, strict=True):
            timing = self.timings[request_id - self._first_id]
            timing.tokens.append(now)
            timing.ids.append(token)
            if finish:
                timing.ended = now
                self.num_ended += 1


class ClosedLoop(Recorder):
    """Submits the jobs of `work`, of which as many are open as are in flight. `request_of` makes a request of
    an id and a job when it is submitted.
    """

    def __init__(
        self, work: Work, request_of: Callable[[int, Job], Request] = greedy, first_id: int = 0
    ) -> None:
        super().__init__(first_id)
        self._work, self._request_of = work, request_of

    @property
    def is_done(self) -> bool:
        return self.num_ended == len(self._work.jobs)

    def receive(self, timeout_s: float) -> list[Submit]:
        num_open, num_left = len(self.timings) - self.num_ended, len(self._work.jobs) - len(self.timings)
        count = min(self._work.in_flight - num_open, num_left)
        if not count and timeout_s:
            time.sleep(timeout_s)
        return [self._submit(len(self.timings)) for _ in range(count)]

    def _submit(self, number: int) -> Submit:
        self.timings.append(Timing(time.perf_counter(), []))
        request = self._request_of(self._first_id + number, self._work.jobs[number])
        return Submit(request, NO_TOKENS, 0)


class Clients(Recorder):
    """Submits request i, whose id is i, `due_s[i]` after the first call."""

    def __init__(self, requests: Sequence[Request], due_s: Sequence[float]) -> None:
        super().__init__()
        self._requests, self._due_s = requests, due_s
        self._began_s = 0.0

    @property
    def is_done(self) -> bool:
        return self.num_ended == len(self._requests)

    def receive(self, timeout_s: float) -> list[Any]:
        self._began_s = self._began_s or time.perf_counter()
        news = self._due()
        if not news and timeout_s:
            time.sleep(max(0.0, min(timeout_s, self._next_s())))
            news = self._due()
        return news

    def _next_s(self) -> float:
        """Returns the seconds until the next request is due."""
        number = len(self.timings)
        return (
            self._began_s + self._due_s[number] - time.perf_counter()
            if number < len(self._requests)
            else float("inf")
        )

    def _due(self) -> list[Submit]:
        submits = []
        while self._next_s() <= 0:
            number = len(self.timings)
            self.timings.append(Timing(self._began_s + self._due_s[number], []))
            submits.append(Submit(self._requests[number], NO_TOKENS, 0))
        return submits
