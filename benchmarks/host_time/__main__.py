"""Measures the host time of one step: it should not depend on the number of slots or of waiting requests.

    python -m benchmarks.host_time --json benchmarks/results/host_time.json

loop: a steady step of the instance's loop, in which no request arrives or ends: messages, plan, launch,
records, tokens on the wire to a process that reads them. Measured is the processor time of the loop's thread,
without the time in the engine's own calls. `warm`: with the caches as engine and loop left them. The toy
engine is a Python loop over the slots: with more slots, less of the loop's data stays in the caches. The
engine `none` computes nothing. `flushed`: with the caches as a forward pass of 25 ms leaves them, which reads
and writes 64 MB repeatedly. The loops alternate, ten steps each.

changing: the slot scheduler alone, 16 slots; at every step one request ends, one arrives, and one that waits
is cancelled. streams: the stream table, where 16 streams get a token.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.host_time.loop import QUEUE_SLOTS, ChangingQueue, WaitingStreams, steady_loop
from benchmarks.results_file import table, write_result

TURN_STEPS = 10  # of one loop, then of the next
Case = tuple[str, int, int]  # engine, slots, waiting requests


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    engine: str
    slots: int
    waiting: int
    caches: str
    us_p50: float
    us_p99: float
    steps: int


def row_of(what: str, case: Case, caches: str, seconds: list[float]) -> Row:
    p50, p99 = (round(float(np.percentile(seconds, level)) * 1e6, 1) for level in (50, 99))
    row = Row(what, *case, caches, p50, p99, len(seconds))
    tqdm.write(
        f"{what}, engine {row.engine}, {row.slots} slots, {row.waiting} waiting, {caches}: {p50} us, p99"
        f" {p99}"
    )
    return row


def loop_cases(engines: list[str], slots: list[int], waiting: list[int]) -> list[Case]:
    """Returns all numbers of slots without waiting requests, and the smallest and largest number of the toy
    engine with waiting requests.
    """
    found = [(engine, count, 0) for engine in engines for count in slots]
    return found + [
        ("toy", count, queue)
        for count in sorted({min(slots), max(slots)})
        for queue in waiting
        if queue and "toy" in engines
    ]


def loops(cases: list[Case], steps: int) -> Iterator[Row]:
    """Yields the rows of steady steps."""
    spent: dict[tuple[Case, str], list[float]] = {
        (case, caches): [] for caches in ("warm", "flushed") for case in cases
    }
    with ExitStack() as stack:
        made = tqdm(spent, desc="loops made")
        running = {each: stack.enter_context(steady_loop(*each[0])) for each in made}
        for _ in tqdm(range(-(-steps // TURN_STEPS)), desc="steady steps"):
            for each, found in spent.items():
                found += running[each].steady_steps(TURN_STEPS, each[1] == "flushed")
    for (case, caches), found in spent.items():
        yield row_of("loop", case, caches, found)


def queues(waiting: list[int], steps: int) -> Iterator[Row]:
    """Yields the rows of steps in which requests arrive and end, and of tokens for some of many streams."""
    kinds: dict[str, type[ChangingQueue | WaitingStreams]] = {
        "changing": ChangingQueue,
        "streams": WaitingStreams,
    }
    for what, count in tqdm([(what, count) for what in kinds for count in waiting], desc="queues"):
        queue = kinds[what](max(count, 2 * QUEUE_SLOTS))
        yield row_of(
            what,
            ("none", QUEUE_SLOTS, max(count, 2 * QUEUE_SLOTS)),
            "warm",
            [queue.turn() for _ in range(steps)],
        )


def main() -> None:
    parser = command_line(__doc__, quick="a few steps: does it run at all?")
    parser.add_argument("--slots", default="1,16,64,256,1024")
    parser.add_argument("--waiting", default="0,1000,100000")
    parser.add_argument("--engines", default="toy,none", help="of the loops")
    parser.add_argument("--only", default="loop,queues")
    parser.add_argument("--steps", type=int, default=300, help="measured for each row")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)  # of long steps: each loop waits for the turns of the others
    slots, waiting = ([int(count) for count in given.split(",")] for given in (asked.slots, asked.waiting))
    steps, rows = TURN_STEPS if asked.quick else asked.steps, list[Row]()
    if "loop" in asked.only:
        rows += loops(loop_cases(asked.engines.split(","), slots, waiting), steps)
    if "queues" in asked.only:
        rows += queues(waiting, steps)
    if asked.json:
        write_result(asked.json, {"rows": [asdict(row) for row in rows]})
    print(table([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
