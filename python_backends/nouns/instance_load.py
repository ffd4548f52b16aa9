"""What an instance carries, as the scheduler model knows it: what it said last, and what it was sent since.

The wire makes one of each heartbeat; the router, its policies, the balancer and the metrics read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from python_backends.nouns.load import Load
from python_backends.nouns.request import ModelLimits

# left to ordinary requests where one of high priority runs, by a policy that keeps headroom
HEADROOM_TOKENS = 1600


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request will take where it goes."""

    num_tokens: int  # prompt and answer so far
    num_new_tokens: int  # of these, tokens that must be computed there
    priority: int = 0


@dataclass(frozen=True)
class InstanceLoad:
    """Of one instance that is ready. Tokens are those of KV blocks. What policies compare for each request is
    computed once.

    A heartbeat is up to a fifth of a second old. Requests that it does not count yet would make a busy
    instance look free, and all new requests would go there: so they are kept here until it does.
    """

    number: int  # of the instance
    limits: ModelLimits
    said: Load = field(default_factory=Load)
    unseen: Mapping[int, Demand] = field(default_factory=dict)  # by Submit number: not yet counted in `said`

    @cached_property
    def num_requests(self) -> int:
        """That run or wait there."""
        return self.said.num_running + self.num_waiting

    @property
    def num_waiting(self) -> int:
        return self.said.num_waiting + len(self.unseen)

    @cached_property
    def num_free_slots(self) -> int:
        """After all requests that wait have got one; below 0: so many will still wait."""
        return self.limits.num_slots - self.num_requests - self.said.num_reserved_slots

    @property
    def has_free_slot(self) -> bool:
        """Whether a slot is free now. If requests wait nevertheless, they wait for memory."""
        return self.num_free_slots > -self.num_waiting

    @property
    def used_tokens(self) -> int:
        return self.said.num_used_blocks * self.limits.block_tokens

    @cached_property
    def unpromised_tokens(self) -> int:
        """That no request uses or will use, as admission there predicts it. Those that wait may need them."""
        promised = self.said.peak_blocks * self.limits.block_tokens
        return self.limits.kv_tokens - max(self.used_tokens, promised)

    @property
    def waiting_tokens(self) -> int:
        """That the requests which wait there need for their tokens so far."""
        return self.said.waiting_blocks * self.limits.block_tokens + self._unseen_tokens

    @property
    def head_tokens(self) -> int:
        """That the first request which waits there needs for its tokens so far."""
        return self.said.head_blocks * self.limits.block_tokens

    @cached_property
    def free_tokens(self) -> int:
        """That are left after all requests that wait there have what they need."""
        return self.limits.kv_tokens - self.used_tokens - self.waiting_tokens

    @cached_property
    def tokens_to_compute(self) -> int:
        """Before a new request's turn comes, as far as known."""
        unseen = sum(demand.num_new_tokens for demand in self.unseen.values())
        waiting = self.said.waiting_blocks * self.limits.block_tokens
        return self.said.num_prefill_tokens + waiting + unseen

    @property
    def num_high_priority(self) -> int:
        return self.said.num_high_priority + sum(demand.priority > 0 for demand in self.unseen.values())

    @cached_property
    def freeness(self) -> float:
        """In tokens per request; requests of high priority count as all others."""
        return freeness(self.limits.kv_tokens, self._virtual_tokens, self.num_requests)

    @cached_property
    def freeness_with_headroom(self) -> float:
        """Where a request of high priority is, ordinary ones find HEADROOM_TOKENS at most."""
        if not self.num_high_priority:
            return self.freeness
        memory = self.limits.kv_tokens
        virtual = [*self._virtual_tokens, headroom(memory, HEADROOM_TOKENS)]
        return freeness(memory, virtual, self.num_requests)

    @cached_property
    def freeness_at_peak(self) -> float:
        """The smaller of the present freeness and of that at the time when the requests that run there will
        use the most memory, as predicted. Requests of high priority count as all others.
        """
        peak_tokens = self.said.future_blocks * self.limits.block_tokens
        if self.freeness <= 0 or peak_tokens <= self.used_tokens:
            return self.freeness
        return min(self.freeness, freeness(self.limits.kv_tokens, [peak_tokens], self.num_requests))

    def submitted(self, number: int, demand: Demand) -> InstanceLoad:
        """With a request that it was sent by the Submit of this number."""
        return replace(self, unseen={**self.unseen, number: demand})

    def following(self, before: InstanceLoad) -> InstanceLoad:
        """With the requests that `before` knew and this heartbeat does not count yet."""
        last = self.said.last_submit
        return replace(self, unseen={each: of for each, of in before.unseen.items() if each > last})

    @property
    def _unseen_tokens(self) -> int:
        return sum(demand.num_tokens for demand in self.unseen.values())

    @property
    def _virtual_tokens(self) -> list[int]:
        """The virtual usages of Llumnix. Slots are static here: without a free one the waiting requests count
        with all that they need, and not only the first of them.
        """
        if self.num_free_slots <= 0:  # the less the more requests wait
            return [self.used_tokens, self.waiting_tokens, self.limits.kv_tokens]
        return [self.used_tokens, self.head_tokens, self._unseen_tokens]


def freeness(memory: float, virtual: Sequence[float], requests: int) -> float:
    """(M − ΣV) / B: of `memory` M, what the virtual usages V leave for each of B `requests`, from Llumnix
    (OSDI 2024, arXiv 2406.03243), section 4.4: how much each request has left to grow into.

    Below zero it is the shortfall itself. Divided, an instance would look better the more requests it has.
    """
    left = float(memory - sum(virtual))
    return left / max(1, requests) if left > 0 else left


def headroom(memory: float, kept: float) -> float:
    """What requests of high priority seem to use in addition, all together: ordinary requests then find at
    most `kept` of `memory`.
    """
    return max(0.0, memory - kept)
