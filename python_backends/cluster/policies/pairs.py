"""Between which instances running requests move, by the freeness of each: from those that have little memory
for each request to those that have much.

Source: Llumnix (OSDI 2024, arXiv 2406.03243), section 4.4. A move must leave the destination freer than the
source was, so a request does not go back and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from python_backends.cluster.columns import Doubles, Figures
from python_backends.cluster.freeness import freeness, freeness_of
from python_backends.cluster.move import MoveReason
from python_backends.cluster.policies.policy import Pair
from python_backends.cluster.views import InstanceView


def pairs_by_freeness(views: Sequence[InstanceView], figures: Figures, low_tokens: int) -> list[Pair]:
    return _pairs(views, figures.freeness, low_tokens, _reason)


def pairs_by_freeness_base(views: Sequence[InstanceView], figures: Figures, low_tokens: int) -> list[Pair]:
    """Requests of high priority count as all others."""
    return _pairs(views, figures.freeness_base, low_tokens, _reason_base)


def pairs_by_freeness_at_peak(views: Sequence[InstanceView], figures: Figures, low_tokens: int) -> list[Pair]:
    """Requests of high priority count as all others."""
    return _pairs(views, figures.freeness_at_peak, low_tokens, _reason_base)


def freer_afterwards(pair: Pair, headroom_tokens: int | None) -> Callable[[int], bool]:
    """Says whether the destination would be freer with one more request of so many tokens than the source is
    now.
    """
    free_tokens, num_requests = pair.destination.free_tokens, pair.destination.num_requests + 1
    now = freeness_of(pair.source, headroom_tokens)
    return lambda num_tokens: freeness(free_tokens - num_tokens, [], num_requests) > now


def _pairs(
    views: Sequence[InstanceView],
    measured: Doubles,
    low_tokens: int,
    reason_of: Callable[[InstanceView, int], MoveReason],
) -> list[Pair]:
    """The least free with the freest, and so on."""
    order = np.argsort(measured, kind="stable")
    low = order[measured[order] < low_tokens].tolist()
    high = order[measured[order] > low_tokens][::-1].tolist()
    return [
        Pair(views[source], views[destination], reason_of(views[source], low_tokens))
        for source, destination in zip(low, high, strict=False)
    ]


def _reason(source: InstanceView, low_tokens: int) -> MoveReason:
    if source.num_high_priority and freeness_of(source, None) >= low_tokens:
        return MoveReason.PRIORITY
    return _reason_base(source, low_tokens)


def _reason_base(source: InstanceView, low_tokens: int) -> MoveReason:
    if source.load.num_waiting and source.num_free_slots > -source.num_waiting:
        return MoveReason.DEFRAGMENT
    return MoveReason.BALANCE
