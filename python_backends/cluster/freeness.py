"""Freeness: how much memory each request of an instance has left to grow into, in tokens per request.

Source: Llumnix (OSDI 2024, arXiv 2406.03243), section 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from python_backends.cluster.views import InstanceView

# left to ordinary requests where one of high priority runs, by a policy that keeps headroom
HEADROOM_TOKENS = 1600


def freeness(memory: float, virtual: Sequence[float], requests: int) -> float:
    """(M − ΣV) / B: of `memory` M, what the virtual usages V leave for each of B `requests`.

    Below zero it is the shortfall itself. Divided, an instance would look better the more requests it has.
    """
    left = memory - sum(virtual)
    return left / max(1, requests) if left > 0 else left


def headroom(memory: float, kept: float) -> float:
    """What requests of high priority seem to use in addition, all together: ordinary requests then find at
    most `kept` of `memory`.
    """
    return max(0.0, memory - kept)


def freeness_of(view: InstanceView, headroom_tokens: int | None) -> float:
    """In tokens per request. `headroom_tokens`: see `headroom`; None: requests of high priority count as all
    others.

    Slots are static here. Without a free one the waiting requests count with all that they need, and not only
    the first of them.
    """
    memory = float(view.limits.kv_tokens)
    virtual = [float(view.used_tokens)]
    if view.num_free_slots <= 0:
        virtual += [float(view.waiting_tokens), memory]  # the less the more requests wait
    else:
        unseen = sum(demand.num_tokens for demand in view.unseen.values())
        virtual += [float(view.head_tokens), float(unseen)]
    if headroom_tokens is not None and view.num_high_priority:
        virtual.append(headroom(memory, headroom_tokens))
    return freeness(memory, virtual, view.num_requests)


def freeness_at_peak(view: InstanceView) -> float:
    """The smaller of the present freeness and of that at the time when the requests that run there will use
    the most memory, as predicted. Requests of high priority count as all others.
    """
    now = freeness_of(view, None)
    peak_tokens = view.load.future_blocks * view.limits.block_tokens
    if now <= 0 or peak_tokens <= view.used_tokens:
        return now
    return min(now, freeness(float(view.limits.kv_tokens), [float(peak_tokens)], view.num_requests))
