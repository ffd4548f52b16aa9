"""Free memory is gathered where a request waits for it: running requests leave that instance for others with
free memory. Requests may wait for memory in the others, too, if they came later.

While all instances are nearly full, each may have free memory that is too small for the first request that
waits there. Balancing by freeness finds no destination then. Pure functions; the balancer starts the moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from python_backends.nouns.instance_load import InstanceLoad
from python_backends.streams.stream import Stream

STEPS_LEFT = 32  # for which a destination keeps memory, for each request that runs there

# by instance: the request without a slot whose turn is next
Firsts = Mapping[int, Stream | None]


def first_waiting(streams: Iterable[Stream]) -> Stream | None:
    """Of those without a slot the one whose turn is next."""
    return min((stream for stream in streams if not stream.seated), key=_turn, default=None)


def lacking(loads: Iterable[InstanceLoad], firsts: Firsts) -> list[InstanceLoad]:
    """Those where a request waits for memory, and not for a slot; the one whose turn is next comes first."""
    waiting = [(first, load) for load in loads if (first := firsts[load.number]) is not None]
    waiting.sort(key=lambda each: _turn(each[0]))
    return [load for _, load in waiting if load.has_free_slot and missing_tokens(load) > 0]


def by_spare(loads: Iterable[InstanceLoad]) -> list[InstanceLoad]:
    """Those with a free slot; the one with the most memory to spare comes first."""
    return sorted((load for load in loads if load.has_free_slot), key=spare_tokens, reverse=True)


def destination_for(
    source: InstanceLoad, ordered: Iterable[InstanceLoad], firsts: Firsts
) -> InstanceLoad | None:
    """The first of `ordered` (see `by_spare`) where no request waits, or only requests that came later than
    the first that waits in `source`. None if there is too little memory for what must leave `source`.
    """
    first, missing = firsts[source.number], missing_tokens(source)
    assert first is not None
    for load in ordered:
        if spare_tokens(load) < missing:
            return None
        if load is not source and _comes_later(load, firsts[load.number], first):
            return load
    return None


def missing_tokens(load: InstanceLoad) -> int:
    """KV tokens that are not free for the first request that waits; at most 0: they are free."""
    return load.head_tokens + 1 - load.unpromised_tokens


def spare_tokens(load: InstanceLoad) -> int:
    """KV tokens that a request may bring along, with some left for those that run there."""
    return load.unpromised_tokens - STEPS_LEFT * load.said.num_running


def _comes_later(load: InstanceLoad, first: Stream | None, wanted: Stream) -> bool:
    """Whether the requests that wait in `load` came later than `wanted`."""
    if first is None:
        return not load.num_waiting
    return _turn(first) > _turn(wanted)


def _turn(stream: Stream) -> tuple[int, int]:
    return -stream.request.priority, stream.request.arrival_ns
