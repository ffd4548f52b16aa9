"""Orca (OSDI 2022): first come first served, prompts in one piece, one step at a time."""

from __future__ import annotations

from collections.abc import Iterable

from python_backends.scheduling.policies.policy import Policy
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.state.view import View


def algorithm_1(waiting: Iterable[Sequence], view: View) -> list[Sequence]:
    """Algorithm 1 of Orca (OSDI 2022): first come first served, at most max_bs in a batch, max_tokens
    reserved against all KV slots.

    Running requests came earlier and are always selected again, so only the initiation phase is decided here.
    KV slots are counted in whole blocks, as they are handed out.
    """
    admitted: list[Sequence] = []
    reserved = sum(map(view.max_blocks, view.running))
    for sequence in waiting:
        if len(admitted) == view.num_free_slots:
            break
        reserved += view.max_blocks(sequence)
        if reserved > view.num_blocks:
            break
        admitted.append(sequence)
    return admitted


ORCA = Policy(algorithm_1, chunked_prefill=False, by_priority=False, max_in_flight=1)
