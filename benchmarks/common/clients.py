"""Requests that arrive at given times, and records of their times: in place of the instance's link, or as
bodies for HTTP.

Called by the parts of `gpu`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.common.work import Job, Timing
from python_backends.nouns.messages import Submit
from python_backends.nouns.request import Request, Sampling
from python_backends.nouns.step import Tokens

Range = tuple[int, int]  # smallest and largest, both included


def jobs_of(count: int, vocabulary: int, prompts: Range, answers: Range, seed: int = 0) -> list[Job]:
    """Returns random prompts with random lengths in the ranges."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(prompts[0], prompts[1] + 1, count)
    counts = generator.integers(answers[0], answers[1] + 1, count)
    return [
        Job(generator.integers(0, vocabulary, length).tolist(), int(most))
        for length, most in zip(lengths, counts, strict=True)
    ]


def requests_of(jobs: Sequence[Job]) -> list[Request]:
    """Greedy, each of exactly its tokens."""
    return [
        Request(number, np.array(job.prompt, np.int32), Sampling(max_tokens=job.max_tokens))
        for number, job in enumerate(jobs)
    ]


class Clients:
    """Submits request i, whose id is i, `due_s[i]` after the first call; records its tokens and when they
    arrive.
    """

    def __init__(self, requests: Sequence[Request], due_s: Sequence[float]) -> None:
        self.timings: list[Timing] = []
        self.num_ended = 0
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

    def publish(self, messages: Sequence[Any]) -> None:
        now = time.perf_counter()
        for tokens in [message for message in messages if isinstance(message, Tokens)]:
            came = (tokens.request_ids.tolist(), tokens.tokens.tolist(), tokens.finishes.tolist())
            for number, token, finish in zip(*came, strict=True):
                self.timings[number].tokens.append(now)
                self.timings[number].ids.append(token)
                if finish:
                    self.timings[number].ended = now
                    self.num_ended += 1

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
            submits.append(Submit(self._requests[number], np.zeros(0, np.int32), 0))
        return submits
