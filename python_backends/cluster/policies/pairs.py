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
from python_backends.cluster.policies.policy import Pair
from python_backends.cluster.views import InstanceView
from python_backends.moving.move import MoveReason

# requests leave an instance whose freeness is below this, in tokens per request: with less than a block and a
# half for each, the next blocks that are begun are the last ones, and requests are evicted
LOW_TOKENS = 48
SPARE_SHARE = 1 / 16  # of the memory: what is free at the predicted peak where a request moves to


def pairs_by_freeness(views: Sequence[InstanceView], figures: Figures) -> list[Pair]:
    return _pairs(views, figures.freeness, _reason)


def pairs_by_freeness_base(views: Sequence[InstanceView], figures: Figures) -> list[Pair]:
    """Requests of high priority count as all others."""
    return _pairs(views, figures.freeness_base, _reason_base)


def pairs_before_evictions(views: Sequence[InstanceView], figures: Figures) -> list[Pair]:
    """From those where memory will be short, as predicted, to the ones with the least memory that is still
    free then: large pieces are left to long prompts. None while a request waits anywhere: free memory is for
    it. Requests of high priority count as all others.
    """
    if any(view.num_waiting for view in views):
        return []
    measured = figures.freeness_at_peak
    free = measured * np.maximum(1, figures.num_requests)
    least = np.array([SPARE_SHARE * view.limits.kv_tokens for view in views])
    order = np.argsort(free, kind="stable")
    is_low, is_high = measured < LOW_TOKENS, (measured > LOW_TOKENS) & (free > least)
    low, high = order[is_low[order]].tolist(), order[is_high[order]].tolist()
    return _paired(views, low, high, lambda source: MoveReason.BALANCE)


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
    reason_of: Callable[[InstanceView], MoveReason],
) -> list[Pair]:
    """The least free with the freest, and so on."""
    order = np.argsort(measured, kind="stable")
    low = order[measured[order] < LOW_TOKENS].tolist()
    high = order[measured[order] > LOW_TOKENS][::-1].tolist()
    return _paired(views, low, high, reason_of)


def _paired(
    views: Sequence[InstanceView],
    low: list[int],
    high: list[int],
    reason_of: Callable[[InstanceView], MoveReason],
) -> list[Pair]:
    return [
        Pair(views[source], views[destination], reason_of(views[source]))
        for source, destination in zip(low, high, strict=False)
    ]


def _reason(source: InstanceView) -> MoveReason:
    if source.num_high_priority and freeness_of(source, None) >= LOW_TOKENS:
        return MoveReason.PRIORITY
    return _reason_base(source)


def _reason_base(source: InstanceView) -> MoveReason:
    if source.load.num_waiting and source.has_free_slot:
        return MoveReason.DEFRAGMENT
    return MoveReason.BALANCE
