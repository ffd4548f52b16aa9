"""The work of the peers, and the times that every engine notes of it. Standard library alone: it runs in every peer's environment."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MAX_MODEL_TOKENS = 512
PEER_TOKEN_BUDGET = 512  # tokens of one step of every engine
QUICK_REQUESTS, QUICK_TOKENS = 16, 12


@dataclass(frozen=True, slots=True)
class Job:
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Work:
    jobs: list[Job]
    in_flight: int

    def shifted(self, by: int, vocabulary: int) -> Work:
        """The same lengths with other prompts, so that nobody knows a prefix from an earlier round."""
        return Work([Job([(token + by) % vocabulary for token in job.prompt], job.max_tokens) for job in self.jobs], self.in_flight)


@dataclass(slots=True)
class Timing:
    """Of one request, in seconds of one clock: submitted, when each token came, answer complete."""

    submitted: float
    tokens: list[float]
    ended: float = 0.0


class PeerEngine(Protocol):
    def run(self, work: Work) -> list[Timing]: ...


def load_work(quick: bool) -> Work:
    table = json.loads(Path(__file__).with_name("workload.json").read_text())
    jobs = [Job(request["prompt"], request["max_tokens"]) for request in table["requests"]]
    if quick:
        jobs = [Job(job.prompt, min(job.max_tokens, QUICK_TOKENS)) for job in jobs[:QUICK_REQUESTS]]
    return Work(jobs, table["concurrency"])


def closed_loop(work: Work, submit: Callable[[int, Job], None], step: Callable[[], Iterable[tuple[int, int]]]) -> list[Timing]:
    """Keeps `work.in_flight` requests inside an engine that is driven step by step; a step says (job, tokens that came) of some."""
    timings: list[Timing] = []
    num_ended = 0
    while num_ended < len(work.jobs):
        while len(timings) < min(len(work.jobs), num_ended + work.in_flight):
            timings.append(Timing(time.perf_counter(), []))
            submit(len(timings) - 1, work.jobs[len(timings) - 1])
        came = list(step())
        now = time.perf_counter()
        for index, count in came:
            timings[index].tokens += [now] * count
            if len(timings[index].tokens) == work.jobs[index].max_tokens:
                timings[index].ended = now
                num_ended += 1
    return timings


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
