"""What a long queue costs: host time of one step while so many requests wait, for the slot scheduler and for the stream table.

    python benchmarks/waiting.py --json benchmarks/results/waiting.json

Slot scheduler: 16 slots over an engine that computes nothing; at every step one request ends, another gets its slot, one arrives and
one that waits is cancelled; priorities from 0 to 9. Stream table: the same number of open streams, 16 of which get a token a step.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from python_backends.config import StreamSettings
from python_backends.metrics import Metrics
from python_backends.request import Feedback, Finish, ModelLimits, Request, Sampling
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.step import Started, StepOutput, StepPlan, Tokens
from python_backends.streams.table import StreamTable

SLOTS = 16
PROMPT_TOKENS = 64
OUTPUT_TOKENS = SLOTS  # one of the slots ends at every step
PRIORITIES = 10
COUNTS = (100, 10_000, 100_000)


class Queue:
    """A slot scheduler with `count` waiting, and an engine that says what is expected of it."""

    def __init__(self, count: int) -> None:
        self._random = random.Random(1)
        self.scheduler = SlotScheduler(ModelLimits(2048, 1000, SLOTS, SLOTS * 8, 32))
        self._waiting: list[int] = []
        self._made = 0
        for _ in range(count + SLOTS):
            self._arrive()
        for _ in range(4 * SLOTS):
            self.turn()

    def turn(self) -> float:
        """Seconds of one step on the host."""
        self._arrive()
        cancelled = self._waiting.pop(self._random.randrange(len(self._waiting)))
        started_s = time.perf_counter()
        self.scheduler.cancel(cancelled)
        plan = self.scheduler.plan()
        assert plan is not None
        self.scheduler.apply(plan, _output(plan))
        spent_s = time.perf_counter() - started_s
        self._keep_count()
        return spent_s

    def _arrive(self) -> None:
        self._made += 1
        prompt = np.full(PROMPT_TOKENS, self._made % 1000, np.int32)
        request = Request(self._made, prompt, Sampling(OUTPUT_TOKENS), priority=self._random.randrange(PRIORITIES))
        self.scheduler.submit(request, np.zeros(0, np.int32))
        self._waiting.append(self._made)

    def _keep_count(self) -> None:
        """Those that got a slot can no longer be cancelled while they wait; others take their place."""
        for started in self.scheduler.take_started():
            self._waiting.remove(started.request_id)
            self._arrive()


def _output(plan: StepPlan) -> StepOutput:
    count = int(plan.samples.sum())
    return StepOutput(plan.number, np.ones(count, np.int32), np.zeros(count, np.uint8))


class Streams:
    """A stream table with `count` streams without a slot and SLOTS that get a token a step."""

    def __init__(self, count: int) -> None:
        settings = StreamSettings(max_open=1 << 20, max_queued_tokens=1 << 40, probe_ms=10_000.0, first_chunk_ms=600_000.0)
        self._table = StreamTable(settings, time.monotonic_ns, lambda words: 4, Metrics())
        self._table.instance_ready()
        prompt = np.zeros(PROMPT_TOKENS, np.int32)
        for number in range(SLOTS + count):
            self._table.accept(Request(number, prompt, Sampling(1 << 20), stream=True, arrival_ns=time.monotonic_ns()), None)
        self._table.outbox()
        for number in range(SLOTS):
            self._table.started(Started(number, 0, 0))
        self._index = 0

    def turn(self) -> float:
        ones = np.ones(SLOTS, np.int32)
        rows = np.arange(SLOTS, dtype=np.int64)
        started_s = time.perf_counter()
        self._table.tokens(Tokens(rows, 0 * ones, self._index * ones, ones, np.full(SLOTS, Finish.RUNNING, np.uint8)))
        self._table.outbox()
        for outgoing in self._table.due():
            assert outgoing.window is not None
            self._table.feedback(Feedback(outgoing.request_id, outgoing.window.start + len(outgoing.window.tokens)))
        self._table.wait_s()
        self._index += 1
        return time.perf_counter() - started_s


def median_us(turn: Callable[[], float], turns: int) -> float:
    return round(statistics.median(turn() for _ in range(turns)) * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=300, help="steps measured for each row")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    asked = parser.parse_args()
    rows = []
    for count in tqdm(COUNTS, desc="waiting requests"):
        scheduler_us, table_us = (median_us(kind(count).turn, asked.turns) for kind in (Queue, Streams))
        rows.append({"num_waiting": count, "slot_scheduler_us": scheduler_us, "stream_table_us": table_us})
        tqdm.write(f"{count:>8} waiting: slot scheduler {scheduler_us} us, stream table {table_us} us a step")
    if asked.json:
        asked.json.write_text(json.dumps({**provenance(), "rows": rows}, indent=1) + "\n")


def provenance() -> dict[str, Any]:
    """Where the numbers come from."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return {
        "machine": {"processor": processor, "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": " ".join(["python", *sys.argv]),
    }


if __name__ == "__main__":
    main()
