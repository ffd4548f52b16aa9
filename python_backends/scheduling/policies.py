"""Which waiting sequences get a slot at this step: one function a policy, chosen by name from `POLICIES`.

A policy sees the waiting sequences in their order (see `waiting`) and a `View` of what is free; it returns those to admit, in order.
It changes nothing. `reserve` is the place of length prediction: how many tokens a sequence is expected to hold at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from python_backends.scheduling.sequence import Sequence

Reserve = Callable[[Sequence], int]


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


Select = Callable[[Iterable[Sequence], View], list[Sequence]]


@dataclass(frozen=True, slots=True)
class Policy:
    select: Select
    chunked_prefill: bool = True
    by_priority: bool = True  # False: the waiting stand in order of arrival alone
    max_in_flight: int = 1 << 30  # launched steps whose tokens have not been read


def reserve_max_tokens(sequence: Sequence) -> int:
    """The safe reservation: prompt and max_tokens. Nothing ever has to be evicted."""
    return sequence.request.max_total_tokens


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


POLICIES: dict[str, Policy] = {
    "fcfs": Policy(fcfs),
    "orca": Policy(orca, chunked_prefill=False, by_priority=False, max_in_flight=1),
}
