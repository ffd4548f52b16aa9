"""The parts of a policy: functions without side effects, except that `View.try_reserve` counts what it has
reserved.

`select` sees the waiting in their order and a `View` of what is free, and returns those to admit. `rank` puts
the waiting into order (none: by priority and arrival, see `waiting`). `victim` chooses the sequence to evict
when KV blocks run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from python_backends.scheduling.lengths.belief import Array
from python_backends.scheduling.lengths.predicted_order import Rank
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.state.view import View

MAX_SKIPPED = 16  # waiting sequences that do not fit and are overtaken in one step

RestTokens = Callable[[list[Sequence]], Array]  # [n] predicted
Select = Callable[[Iterable[Sequence], View], list[Sequence]]
Victim = Callable[[list[Sequence], RestTokens], Sequence]


# --- admission of several policies


def fitting(waiting: Iterable[Sequence], view: View) -> list[Sequence]:
    """Those with which the future memory's peak stays below its bound. Sequences that don't fit are skipped:
    at most MAX_SKIPPED, and none that is overdue.
    """
    admitted: list[Sequence] = []
    skipped = 0
    for sequence in waiting:
        if len(admitted) == view.num_free_slots or skipped == MAX_SKIPPED:
            break
        if view.try_reserve(sequence):
            admitted.append(sequence)
        elif view.is_overdue(sequence):
            break
        else:
            skipped += 1
    return admitted


# --- eviction


def youngest(running: list[Sequence], rest_tokens: RestTokens) -> Sequence:
    """Of the lowest priority, the sequence that arrived last."""
    return min(running, key=lambda sequence: (sequence.request.priority, -sequence.arrival))


def longest_rest(running: list[Sequence], rest_tokens: RestTokens) -> Sequence:
    """Of the lowest priority, and of these the ones that were evicted least often, the sequence with the most
    predicted tokens still to come. So none is evicted again and again while others come and go.
    """
    keys = [
        (sequence.request.priority, sequence.num_evictions, -rest, -sequence.arrival)
        for sequence, rest in zip(running, rest_tokens(running), strict=True)
    ]
    return running[keys.index(min(keys))]


@dataclass(frozen=True, slots=True)
class Policy:
    select: Select
    rank: Rank | None = None  # a policy that has one is in `PREDICTED_POLICIES` of the settings
    victim: Victim = youngest
    # admits by future memory, and reserves the predicted length; otherwise max_tokens
    looks_ahead: bool = False
    sampled: bool = False  # draws lengths from those of recent answers, and ignores predictions
    chunked_prefill: bool = True
    by_priority: bool = True  # False: the waiting are in order of arrival alone; none becomes overdue
    max_in_flight: int = 1 << 30  # launched steps whose tokens have not been read
    max_passed_over_s: float = 10.0  # one that was overtaken goes first after it, whatever its priority
    max_passed_over_steps: int = 0  # if not 0, used instead
