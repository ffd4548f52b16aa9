"""Between which instances running requests move, by the freeness of each: from those that have little memory
for each request to those that have much.

Source: Llumnix (OSDI 2024, arXiv 2406.03243), section 4.4. A move must leave the destination freer than the
source was, so a request does not go back and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from python_backends.cluster.policies.policy import Pair
from python_backends.moving.move import MoveReason
from python_backends.nouns.instance_load import InstanceLoad, freeness

# requests leave an instance whose freeness is below this, in tokens per request: with less than a block and a
# half for each, the next blocks that are begun are the last ones, and requests are evicted
LOW_TOKENS = 48
SPARE_SHARE = 1 / 16  # of the memory: what is free at the predicted peak where a request moves to


def pairs_by_freeness(loads: Sequence[InstanceLoad]) -> list[Pair]:
    return _pairs(loads, lambda load: load.freeness_with_headroom, _reason)


def pairs_by_freeness_base(loads: Sequence[InstanceLoad]) -> list[Pair]:
    """Requests of high priority count as all others."""
    return _pairs(loads, lambda load: load.freeness, _reason_base)


def pairs_before_evictions(loads: Sequence[InstanceLoad]) -> list[Pair]:
    """From those where memory will be short, as predicted, to the ones with the least memory that is still
    free then: large pieces are left to long prompts. None while a request waits anywhere: free memory is for
    it. Requests of high priority count as all others.
    """
    if any(load.num_waiting for load in loads):
        return []
    order = sorted(loads, key=_free_at_peak)
    low = [load for load in order if load.freeness_at_peak < LOW_TOKENS]
    high = [
        load
        for load in order
        if load.freeness_at_peak > LOW_TOKENS and _free_at_peak(load) > SPARE_SHARE * load.limits.kv_tokens
    ]
    return _paired(low, high, lambda source: MoveReason.BALANCE)


def freer_afterwards(pair: Pair, has_headroom: bool) -> Callable[[int], bool]:
    """Says whether the destination would be freer with one more request of so many tokens than the source is
    now. `has_headroom`: some is kept for requests of high priority.
    """
    free_tokens, num_requests = pair.destination.free_tokens, pair.destination.num_requests + 1
    now = pair.source.freeness_with_headroom if has_headroom else pair.source.freeness
    return lambda num_tokens: freeness(free_tokens - num_tokens, [], num_requests) > now


def _pairs(
    loads: Sequence[InstanceLoad],
    measured: Callable[[InstanceLoad], float],
    reason_of: Callable[[InstanceLoad], MoveReason],
) -> list[Pair]:
    """The least free with the freest, and so on."""
    order = sorted(loads, key=measured)
    low = [load for load in order if measured(load) < LOW_TOKENS]
    high = [load for load in reversed(order) if measured(load) > LOW_TOKENS]
    return _paired(low, high, reason_of)


def _paired(
    low: list[InstanceLoad], high: list[InstanceLoad], reason_of: Callable[[InstanceLoad], MoveReason]
) -> list[Pair]:
    return [
        Pair(source, destination, reason_of(source)) for source, destination in zip(low, high, strict=False)
    ]


def _free_at_peak(load: InstanceLoad) -> float:
    """Tokens of all requests that run or wait there."""
    return load.freeness_at_peak * max(1, load.num_requests)


def _reason(source: InstanceLoad) -> MoveReason:
    if source.num_high_priority and source.freeness >= LOW_TOKENS:
        return MoveReason.PRIORITY
    return _reason_base(source)


def _reason_base(source: InstanceLoad) -> MoveReason:
    if source.said.num_waiting and source.has_free_slot:
        return MoveReason.DEFRAGMENT
    return MoveReason.BALANCE
