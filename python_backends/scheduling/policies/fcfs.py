"""First come first served, with max_tokens reserved for each: no sequence is ever evicted."""

from __future__ import annotations

from collections.abc import Iterable

from python_backends.scheduling.policies.policy import Policy
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.state.view import View


def reserve_max_tokens(sequence: Sequence) -> int:
    """The safe reservation: prompt and max_tokens. Nothing ever has to be evicted."""
    return sequence.request.max_total_tokens


def in_order(waiting: Iterable[Sequence], view: View) -> list[Sequence]:
    """The waiting in their order. A sequence whose blocks are not free holds up those after it."""
    admitted: list[Sequence] = []
    blocks = view.num_free_blocks
    for sequence in waiting:
        blocks -= view.blocks_needed(sequence)
        if blocks < 0 or len(admitted) == view.num_free_slots:
            break
        admitted.append(sequence)
    return admitted


FCFS = Policy(in_order)
