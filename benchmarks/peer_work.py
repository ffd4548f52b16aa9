"""The work of the peers, and the record of every engine. Uses only the standard library, because it runs in
every peer's environment.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

MAX_MODEL_TOKENS = 512
PEER_TOKEN_BUDGET = 512  # tokens of one step of every engine, unless a row says otherwise
KV_POOL_GIB = 1  # of every engine
BLOCK_TOKENS = 32
ITEM_BYTES = {"bfloat16": 2, "float32": 4}
QUICK_REQUESTS, QUICK_TOKENS = 16, 12


@dataclass(frozen=True, slots=True)
class Job:
    """One request. `messages` have the same content as `prompt`, for engines that take no token ids; empty if
    the ids have one text.
    """

    prompt: list[int]
    max_tokens: int
    messages: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    jobs: list[Job]
    in_flight: int

    def shifted(self, by: int, vocabulary: int) -> Work:
        """Returns work with the same lengths and other prompts, so that no prefix of an earlier round is
        found.
        """
        return Work(
            [Job([(token + by) % vocabulary for token in job.prompt], job.max_tokens) for job in self.jobs],
            self.in_flight,
        )


@dataclass(slots=True)
class Timing:
    """The record of one request, in seconds of one clock: when it was submitted, when each token arrived,
    when the answer was complete; and the answer.

    An engine that returns text sets `text`, the others set `ids`.
    """

    submitted: float
    tokens: list[float]
    ended: float = 0.0
    ids: list[int] = field(default_factory=list)
    text: str = ""


class PeerEngine(Protocol):
    def run(self, work: Work) -> list[Timing]: ...


def load_work(quick: bool) -> Work:
    table = json.loads(Path(__file__).with_name("workload.json").read_text())
    jobs = [Job(request["prompt"], request["max_tokens"]) for request in table["requests"]]
    if quick:
        jobs = [Job(job.prompt, min(job.max_tokens, QUICK_TOKENS)) for job in jobs[:QUICK_REQUESTS]]
    return Work(jobs, table["concurrency"])


def closed_loop(
    work: Work, submit: Callable[[int, Job], None], step: Callable[[], Iterable[tuple[int, list[int]]]]
) -> list[Timing]:
    """Keeps `work.in_flight` requests in an engine that is driven step by step. A step returns (job, new ids)
    for some jobs.
    """
    timings: list[Timing] = []
    num_ended = 0
    while num_ended < len(work.jobs):
        while len(timings) < min(len(work.jobs), num_ended + work.in_flight):
            timings.append(Timing(time.perf_counter(), []))
            submit(len(timings) - 1, work.jobs[len(timings) - 1])
        came = list(step())
        now = time.perf_counter()
        for index, ids in came:
            timing = timings[index]
            timing.tokens += [now] * len(ids)
            timing.ids += ids
            if ids and len(timing.tokens) == work.jobs[index].max_tokens:
                timing.ended = now
                num_ended += 1
    return timings


def kv_blocks(checkpoint: Path, dtype: str, gib: float = KV_POOL_GIB) -> int:
    """Returns how many blocks of BLOCK_TOKENS tokens fit in `gib` for the model of `checkpoint`."""
    config = json.loads((checkpoint / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token_bytes: int = (
        config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * head_dim * ITEM_BYTES[dtype]
    )
    return int(gib * 2**30) // (BLOCK_TOKENS * token_bytes)


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
