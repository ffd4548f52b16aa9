"""Each instance as the scheduler model sees it: its last heartbeat, and the requests sent to it since.

A heartbeat is up to a fifth of a second old. Requests that it does not count yet would make a busy instance
look free, and all new requests would go there: so they are kept here until it does. Changed by the router.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from python_backends.nouns.messages import Load
from python_backends.nouns.request import ModelLimits


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request will take where it goes."""

    num_tokens: int  # prompt and answer so far
    num_new_tokens: int  # of these, tokens that must be computed there
    priority: int = 0


@dataclass(slots=True)
class InstanceView:
    """One instance that is ready. Tokens are those of KV blocks."""

    number: int
    limits: ModelLimits
    load: Load = field(default_factory=Load)
    unseen: dict[int, Demand] = field(default_factory=dict)  # by Submit number: not yet counted in `load`

    @property
    def num_requests(self) -> int:
        """That run or wait there."""
        return self.load.num_running + self.num_waiting

    @property
    def num_waiting(self) -> int:
        return self.load.num_waiting + len(self.unseen)

    @property
    def num_free_slots(self) -> int:
        """After all requests that wait have got one; below 0: so many will still wait."""
        return self.limits.num_slots - self.num_requests - self.load.num_reserved_slots

    @property
    def has_free_slot(self) -> bool:
        """Whether a slot is free now. If requests wait nevertheless, they wait for memory."""
        return self.num_free_slots > -self.num_waiting

    @property
    def used_tokens(self) -> int:
        return self.load.num_used_blocks * self.limits.block_tokens

    @property
    def unpromised_tokens(self) -> int:
        """That no request uses or will use, as admission there predicts it. Those that wait may need them."""
        promised = self.load.peak_blocks * self.limits.block_tokens
        return self.limits.kv_tokens - max(self.used_tokens, promised)

    @property
    def waiting_tokens(self) -> int:
        """That the requests which wait there need for their tokens so far."""
        unseen = sum(demand.num_tokens for demand in self.unseen.values())
        return self.load.waiting_blocks * self.limits.block_tokens + unseen

    @property
    def head_tokens(self) -> int:
        """That the first request which waits there needs for its tokens so far."""
        return self.load.head_blocks * self.limits.block_tokens

    @property
    def free_tokens(self) -> int:
        """That are left after all requests that wait there have what they need."""
        return self.limits.kv_tokens - self.used_tokens - self.waiting_tokens

    @property
    def tokens_to_compute(self) -> int:
        """Before a new request's turn comes, as far as known."""
        unseen = sum(demand.num_new_tokens for demand in self.unseen.values())
        waiting = self.load.waiting_blocks * self.limits.block_tokens
        return self.load.num_prefill_tokens + waiting + unseen

    @property
    def num_high_priority(self) -> int:
        return self.load.num_high_priority + sum(demand.priority > 0 for demand in self.unseen.values())

    def heard(self, load: Load) -> None:
        self.load = load
        self.unseen = {number: each for number, each in self.unseen.items() if number > load.last_submit}

    def submitted(self, number: int, demand: Demand) -> None:
        self.unseen[number] = demand
