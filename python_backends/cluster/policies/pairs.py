"""Between which instances running requests move, by the freeness of each: from those that have little memory
for each request to those that have much.

Source: Llumnix (OSDI 2024, arXiv 2406.03243), section 4.4. A move must leave the destination freer than the
source was, so a request does not go back and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from python_backends.cluster.freeness import freeness, freeness_at_peak, freeness_of
from python_backends.cluster.move import MoveReason
from python_backends.cluster.policies.policy import Pair, Thresholds
from python_backends.cluster.views import InstanceView

Freeness = Callable[[InstanceView, int | None], float]


def pairs_by_freeness(views: Sequence[InstanceView], thresholds: Thresholds) -> list[Pair]:
    return _pairs(views, thresholds, freeness_of, thresholds.priority_headroom_tokens)


def pairs_by_freeness_base(views: Sequence[InstanceView], thresholds: Thresholds) -> list[Pair]:
    """Requests of high priority count as all others."""
    return _pairs(views, thresholds, freeness_of, None)


def pairs_by_freeness_at_peak(views: Sequence[InstanceView], thresholds: Thresholds) -> list[Pair]:
    return _pairs(views, thresholds, freeness_at_peak, thresholds.priority_headroom_tokens)


def is_freer_afterwards(pair: Pair, num_tokens: int, headroom_tokens: int) -> bool:
    """Whether the destination would be freer with one more request of `num_tokens` than the source is now."""
    view = pair.destination
    left = view.free_tokens - num_tokens
    return freeness(left, [], view.num_requests + 1) > freeness_of(pair.source, headroom_tokens)


def _pairs(
    views: Sequence[InstanceView], thresholds: Thresholds, measure: Freeness, headroom_tokens: int | None
) -> list[Pair]:
    """The least free with the freest, and so on."""
    measured = sorted((measure(view, headroom_tokens), view.number, view) for view in views)
    low = [each for each in measured if each[0] < thresholds.low_tokens]
    high = [each for each in reversed(measured) if each[0] > thresholds.low_tokens]
    return [
        Pair(source, destination, _reason(source, thresholds))
        for (_, _, source), (_, _, destination) in zip(low, high, strict=False)
    ]


def _reason(source: InstanceView, thresholds: Thresholds) -> MoveReason:
    if source.num_high_priority and freeness_of(source, None) >= thresholds.low_tokens:
        return MoveReason.PRIORITY
    if source.load.num_waiting and source.num_free_slots > -source.num_waiting:
        return MoveReason.DEFRAGMENT
    return MoveReason.BALANCE
