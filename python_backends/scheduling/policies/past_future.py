"""Past-Future (arXiv 2507.10150): first come first served by future memory,
with one randomly drawn length for each sequence.
"""

from __future__ import annotations

from collections.abc import Iterable

from python_backends.scheduling.policies.policy import Policy
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.state.view import View


def while_they_fit(waiting: Iterable[Sequence], view: View) -> list[Sequence]:
    """Past-Future (arXiv 2507.10150): first come first served, while the
    future memory's peak stays below its bound.
    """
    admitted: list[Sequence] = []
    for sequence in waiting:
        if len(admitted) == view.num_free_slots or not view.try_reserve(sequence):
            break
        admitted.append(sequence)
    return admitted


PAST_FUTURE = Policy(while_they_fit, looks_ahead=True, sampled=True)
