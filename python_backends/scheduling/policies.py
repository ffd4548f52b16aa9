"""Who gets a slot, who makes way: one entry a policy, chosen by name from `POLICIES`.

A policy is made of functions that change nothing. `rank` puts the waiting into order (none: by priority and arrival, see `waiting`);
`select` sees them in their order and a `View` of what is free, and returns those to admit; `victim` says who makes way when KV blocks
run out. `oracle`, with which benchmarks compare, is `ours` told the true lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from python_backends.scheduling.lengths import Array
from python_backends.scheduling.predicted_order import Rank, Waits
from python_backends.scheduling.sequence import Sequence

BEFORE_ALL = -1e9  # a rank
MAX_SKIPPED = 16  # waiting sequences without room that are passed by in one step

Reserve = Callable[[Sequence], int]
RestTokens = Callable[[list[Sequence]], Array]  # [n] predicted


@dataclass(frozen=True, slots=True)
class View:
    """What is free before this step's admissions."""

    num_free_slots: int
    num_free_blocks: int  # not used and not promised to a running sequence
    blocks_needed: Callable[[Sequence], int]  # blocks that admitting it would use or promise
    max_blocks: Callable[[Sequence], int]  # blocks that it holds if it uses all of max_tokens
    running: list[Sequence]
    num_slots: int
    num_blocks: int
    fits: Callable[[Sequence], bool] = lambda sequence: False  # future memory has room for it, beside those for which it said so before
    is_overdue: Callable[[Sequence], bool] = lambda sequence: True  # it has been passed over for too long: nobody goes before it


Select = Callable[[Iterable[Sequence], View], list[Sequence]]
Victim = Callable[[list[Sequence], RestTokens], Sequence]


def reserve_max_tokens(sequence: Sequence) -> int:
    """The safe reservation: prompt and max_tokens. Nothing ever has to be evicted."""
    return sequence.request.max_total_tokens


# --- who is admitted


def fcfs(waiting: Iterable[Sequence], view: View) -> list[Sequence]:
    """The waiting in their order; a sequence for which there is no room holds up those behind it."""
    admitted: list[Sequence] = []
    blocks = view.num_free_blocks
    for sequence in waiting:
        blocks -= view.blocks_needed(sequence)
        if blocks < 0 or len(admitted) == view.num_free_slots:
            break
        admitted.append(sequence)
    return admitted


def orca(waiting: Iterable[Sequence], view: View) -> list[Sequence]:
    """Algorithm 1 of Orca (OSDI 2022): first come first served, at most max_bs in a batch, max_tokens reserved against all KV slots.

    Running requests came earlier and are always selected again, so only the initiation phase is decided here. KV slots are counted in
    whole blocks, as they are handed out.
    """
    admitted: list[Sequence] = []
    reserved = sum(map(view.max_blocks, view.running))
    for sequence in waiting:
        if len(view.running) + len(admitted) == view.num_slots:
            break
        reserved += view.max_blocks(sequence)
        if reserved > view.num_blocks:
            break
        admitted.append(sequence)
    return admitted


def past_future(waiting: Iterable[Sequence], view: View) -> list[Sequence]:
    """Past-Future (arXiv 2507.10150): first come first served, while the future memory's peak stays below its bound."""
    admitted: list[Sequence] = []
    for sequence in waiting:
        if len(admitted) == view.num_free_slots or not view.fits(sequence):
            break
        admitted.append(sequence)
    return admitted


def fitting(waiting: Iterable[Sequence], view: View) -> list[Sequence]:
    """Like `past_future`, but who doesn't fit is passed by: at most MAX_SKIPPED, and nobody who is overdue."""
    admitted: list[Sequence] = []
    skipped = 0
    for sequence in waiting:
        if len(admitted) == view.num_free_slots or skipped == MAX_SKIPPED:
            break
        if view.fits(sequence):
            admitted.append(sequence)
        elif view.is_overdue(sequence):
            break
        else:
            skipped += 1
    return admitted


# --- whose turn it is


def shortest_first(waits: Waits) -> Array:
    """Shortest predicted answer first (arXiv 2408.15792)."""
    return waits.service_s


def response_ratio(waits: Waits) -> Array:
    """Highest response ratio next: time waited / predicted time (Magnus)."""
    return -waits.waited_s / waits.service_s


def slack_then_ratio(waits: Waits) -> Array:
    """Those that have been passed over for too long, in order of arrival; those whose first token can still come in time, the shortest
    first; the others by response ratio.
    """
    in_time = waits.slack_s >= 0
    ratio = 1.0 + waits.waited_s / waits.service_s
    rank = np.where(in_time & np.isfinite(waits.slack_s), -1.0 / waits.service_s, 1.0 / ratio)
    return np.where(waits.passed_s >= waits.patience_s, BEFORE_ALL - waits.waited_s, rank)


# --- who makes way


def youngest(running: list[Sequence], rest_tokens: RestTokens) -> Sequence:
    """The last of the least priority to arrive."""
    return min(running, key=lambda sequence: (sequence.request.priority, -sequence.arrival))


def longest_rest(running: list[Sequence], rest_tokens: RestTokens) -> Sequence:
    """Of the least priority the one that is predicted to make the most tokens still."""
    keys = [(sequence.request.priority, -rest, -sequence.arrival) for sequence, rest in zip(running, rest_tokens(running), strict=True)]
    return running[keys.index(min(keys))]


@dataclass(frozen=True, slots=True)
class Policy:
    select: Select
    rank: Rank | None = None
    victim: Victim = youngest
    looks_ahead: bool = False  # admits by future memory, and reserves what is predicted; otherwise max_tokens
    sampled: bool = False  # draws lengths from those that ended lately, whatever is predicted
    chunked_prefill: bool = True
    by_priority: bool = True  # False: the waiting stand in order of arrival alone
    max_in_flight: int = 1 << 30  # launched steps whose tokens have not been read
    max_passed_over_steps: int = 0  # instead of the setting in seconds


POLICIES: dict[str, Policy] = {
    "fcfs": Policy(fcfs),
    "orca": Policy(orca, chunked_prefill=False, by_priority=False, max_in_flight=1),
    "past_future": Policy(past_future, looks_ahead=True, sampled=True),
    "sjf": Policy(fitting, shortest_first, longest_rest, looks_ahead=True, max_passed_over_steps=200),
    "hrrn": Policy(fitting, response_ratio, longest_rest, looks_ahead=True),
    "ours": Policy(fitting, slack_then_ratio, longest_rest, looks_ahead=True),
}
