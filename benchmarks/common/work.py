"""The works of the peers, and the record of every engine. Uses only the standard library, because it runs in
every peer's environment.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

PUBLISHED = "SmolLM2"  # a published model; the others are made with random weights
PEER_TOKEN_BUDGET = 512  # tokens of one step of every engine
# of every engine. Holds 16 requests of 2,176 tokens on the shapes S and M in bfloat16 and float32; on M in
# float32, where a token takes the most, they are 1,088 of 1,365 blocks
KV_POOL_GIB = 1
BLOCK_TOKENS = 32
ITEM_BYTES = {"bfloat16": 2, "float32": 4}
QUICK_REQUESTS, QUICK_TOKENS = 16, 12
LONGER_REQUESTS, LONGER_SEED = 40, 4321
LONGER_PROMPTS, LONGER_ANSWERS = (32, 1500), (16, 600)  # tokens: the fewest and the most
LONGER_IDS = range(300, 31_000)  # about those of workload.json
CLEAR_PEAK = "5"  # written to clear_refs


@dataclass(frozen=True, slots=True)
class Job:
    """One request. `messages` have the same content as `prompt`, for engines that take no token ids; empty if
    the ids have one text. `schema`: what the answer follows, as JSON; empty: nothing.
    """

    prompt: list[int]
    max_tokens: int
    messages: str = ""
    schema: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """Requests, and how many of them an engine has at once. `max_model_tokens`: the context that every engine
    is started with, at least the longest prompt with its answer.
    """

    jobs: list[Job]
    in_flight: int
    max_model_tokens: int = 512
    name: str = ""

    def at_once(self, in_flight: int) -> Work:
        """Returns its first requests, four times as many as are in flight, and at least eight."""
        return replace(self, jobs=self.jobs[: max(8, 4 * in_flight)], in_flight=in_flight)

    def shifted(self, by: int, vocabulary: int) -> Work:
        """Returns work with the same lengths and other prompts, so that no prefix of an earlier round is
        found.
        """
        jobs = [Job([(token + by) % vocabulary for token in job.prompt], job.max_tokens) for job in self.jobs]
        return replace(self, jobs=jobs)


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


def load_work(quick: bool, name: str = "W") -> Work:
    """Returns a work of WORKS; `quick`: its first requests, with short answers."""
    work = WORKS[name]()
    if not quick:
        return work
    jobs = [Job(job.prompt, min(job.max_tokens, QUICK_TOKENS)) for job in work.jobs[:QUICK_REQUESTS]]
    return replace(work, jobs=jobs)


def work_w() -> Work:
    table = json.loads(Path(__file__).with_name("workload.json").read_text())
    jobs = [Job(request["prompt"], request["max_tokens"]) for request in table["requests"]]
    return Work(jobs, table["concurrency"], name="W")


def longer_work() -> Work:
    """Returns a work of mixed lengths, most of them short and some many times as long. It is the same at each
    call.
    """
    generator = random.Random(LONGER_SEED)
    prompts = log_uniform(generator, *LONGER_PROMPTS, LONGER_REQUESTS)
    answers = log_uniform(generator, *LONGER_ANSWERS, LONGER_REQUESTS)
    jobs = [
        Job(generator.choices(LONGER_IDS, k=length), max_tokens)
        for length, max_tokens in zip(prompts, answers, strict=True)
    ]
    return Work(jobs, in_flight=16, max_model_tokens=2176, name="longer")


def log_uniform(generator: random.Random, fewest: int, most: int, count: int) -> list[int]:
    """Returns `count` lengths at equal distances on a logarithmic scale, both ends included, in random order:
    their sum does not depend on the generator.
    """
    lengths = [round(fewest * (most / fewest) ** (place / (count - 1))) for place in range(count)]
    generator.shuffle(lengths)
    return lengths


WORKS: dict[str, Callable[[], Work]] = {"W": work_w, "longer": longer_work}


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


def same_tokens(reference: Sequence[int], ids: Sequence[int]) -> int:
    """Returns how many tokens are before the first different one."""
    pairs = zip(reference, ids, strict=False)
    return next(
        (index for index, (one, other) in enumerate(pairs) if one != other), min(len(reference), len(ids))
    )


def clear_peak(pid: int | None = None) -> None:
    """The peak of a process's resident set begins again; None: of this one."""
    Path(f"/proc/{pid or 'self'}/clear_refs").write_text(CLEAR_PEAK)


def resident_mib(field: str = "VmRSS") -> float:
    """Returns the resident memory of this process, by a field of its status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
