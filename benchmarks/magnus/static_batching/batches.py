"""Static batching as Magnus does it: which request waits in which batch, which batch is next, and what
happens to one that ran out of memory.

Owns the waiting batches; computes nothing and touches no tensor. Lengths are in tokens: L of a prompt, G of
an answer, its end among them. A batch is padded to a frame, its longest L and longest G. Called by `mode`.
Source of the formulas: Magnus (ICWS 2024, arXiv 2406.04785); docs/magnus.md says where each is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_WASTE = 50_000  # Φ


@dataclass(frozen=True, slots=True)
class Member:
    """What batching knows of a request."""

    request_id: int
    num_prompt_tokens: int
    expected_tokens: int  # predicted for its answer, at least 1
    arrival_s: float

    @property
    def own_accesses(self) -> int:
        """Σ (L(p) + g) over g < G(p): the tokens in memory that it would read up to
        the end of its answer in a batch of its own.
        """
        return (
            self.num_prompt_tokens * self.expected_tokens
            + self.expected_tokens * (self.expected_tokens - 1) // 2
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that start together and end together."""

    members: tuple[Member, ...]
    closed: bool = False  # no request joins any more

    @property
    def prompt_tokens(self) -> int:
        return max(member.num_prompt_tokens for member in self.members)

    @property
    def expected_tokens(self) -> int:
        return max(member.expected_tokens for member in self.members)

    @property
    def arrival_s(self) -> float:
        """Arrival of the request that has waited longest."""
        return min(member.arrival_s for member in self.members)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(requests, L, G): its serving time is estimated from these."""
        return len(self.members), self.prompt_tokens, self.expected_tokens


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a batch; memory is counted in whole KV blocks, as it is allocated."""

    num_blocks: int  # Θ
    block_tokens: int
    num_slots: int
    fixed_size: int = 0  # requests of a batch, for policies that fix that number
    max_waste: int = MAX_WASTE

    def fits(self, num_members: int, prompt_tokens: int, answer_tokens: int) -> bool:
        """MEM(B) = β · (L(B) + G(B)) · Δ ≤ Θ, and a slot for each."""
        blocks = -(-(prompt_tokens + answer_tokens) // self.block_tokens)
        return num_members <= self.num_slots and num_members * blocks <= self.num_blocks


def safe_size(num_blocks: int, block_tokens: int, max_total_tokens: int) -> int:
    """Requests of a batch that never runs out of memory, whatever
    their lengths: ⌊Θ / ((L_max + G_max) · Δ)⌋.
    """
    return num_blocks // -(-max_total_tokens // block_tokens)


# [batches, (requests, L, G)] → [batches] seconds
Estimate = Callable[[NDArray[np.int64]], NDArray[np.float64]]
Choose = Callable[[list[Batch], float, Estimate], int]  # waiting batches, time in seconds → index of the next


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """`alike`: requests of similar lengths share a batch; otherwise
    requests share a batch in order of arrival.
    """

    alike: bool
    fixed_size: bool
    choose: Choose


def wasted_accesses(members: Iterable[Member]) -> int:
    """WMA(B) = max over p of G(p) · (L(B) − L(p)) + Σ (g + L(B)) over g from G(p) to G(B), both included.

    The two terms of p add up to Σ (g + L(B)) over g from 0 to G(B), which depends only on the frame, minus
    p's own accesses. So the request with the fewest own accesses gives the maximum, and to update a growing
    batch takes three numbers: L, G, fewest accesses.
    """
    members = list(members)
    prompt_tokens = max(member.num_prompt_tokens for member in members)
    answer_tokens = max(member.expected_tokens for member in members)
    return _frame_accesses(prompt_tokens, answer_tokens) - min(member.own_accesses for member in members)


def _frame_accesses(prompt_tokens: int, answer_tokens: int) -> int:
    return (answer_tokens + 1) * prompt_tokens + answer_tokens * (answer_tokens + 1) // 2


def first_come(batches: list[Batch], _now_s: float, _estimate: Estimate) -> int:
    """The batch with the oldest request."""
    return min(range(len(batches)), key=lambda place: batches[place].arrival_s)


def highest_response_ratio(batches: list[Batch], now_s: float, estimate: Estimate) -> int:
    """The batch with the largest ratio of its oldest request's waiting time to its estimated serving time."""
    waiting_s = np.array([now_s - batch.arrival_s for batch in batches])
    seconds = estimate(np.array([batch.shape for batch in batches], np.int64))
    return int(np.argmax(waiting_s / np.maximum(seconds, 1e-9)))


STATIC_POLICIES: dict[str, StaticPolicy] = {
    "vs": StaticPolicy(alike=False, fixed_size=True, choose=first_come),
    "glp": StaticPolicy(alike=True, fixed_size=True, choose=first_come),
    "abp": StaticPolicy(alike=True, fixed_size=False, choose=first_come),
    "magnus": StaticPolicy(alike=True, fixed_size=False, choose=highest_response_ratio),
}


class WaitingBatches:
    """The batches that wait, in the order in which they were opened."""

    def __init__(self, policy: StaticPolicy, limits: BatchLimits) -> None:
        self._policy = policy
        self._limits = limits
        self._most = limits.fixed_size if policy.fixed_size else limits.num_slots
        self._batches: list[Batch] = []
        # of each batch: members (0: closed), L, G, least own accesses
        self._frames: list[tuple[int, int, int, int]] = []

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def batches(self) -> list[Batch]:
        return list(self._batches)

    def add(self, member: Member) -> None:
        """Adds a request to the open batch that the policy prefers, or to a new one."""
        place = self._least_wasting(member) if self._policy.alike else self._latest()
        if place < 0:
            self._append(Batch((member,)))
            return
        self._batches[place] = Batch((*self._batches[place].members, member))
        self._frames[place] = self._joined(self._frames[place], member)

    def take(self, now_s: float, estimate: Estimate) -> Batch:
        """Removes the next batch and returns it."""
        place = self._policy.choose(self._batches, now_s, estimate)
        del self._frames[place]
        return self._batches.pop(place)

    def split(self, batch: Batch) -> bool:
        """Two halves of a batch that ran out of memory wait again, and no
        request joins them. False for a batch of one.
        """
        if len(batch.members) == 1:
            return False
        half = -(-len(batch.members) // 2)
        for members in (batch.members[:half], batch.members[half:]):
            self._append(Batch(members, closed=True))
        return True

    def _append(self, batch: Batch) -> None:
        least = min(member.own_accesses for member in batch.members)
        count, prompt_tokens, expected_tokens = batch.shape
        self._batches.append(batch)
        self._frames.append((0 if batch.closed else count, prompt_tokens, expected_tokens, least))

    def _latest(self) -> int:
        count = self._frames[-1][0] if self._frames else 0
        return len(self._frames) - 1 if 0 < count < self._most else -1

    def _least_wasting(self, member: Member) -> int:
        """Index of the batch with the least WMA after `member` joins, if that is
        below Φ and the batch fits in memory; −1: none.
        """
        least, place = self._limits.max_waste, -1
        for index, frame in enumerate(self._frames):
            if not 0 < frame[0] < self._most:
                continue
            count, prompt_tokens, answer_tokens, own = self._joined(frame, member)
            waste = _frame_accesses(prompt_tokens, answer_tokens) - own
            if waste < least and self._limits.fits(count, prompt_tokens, answer_tokens):
                least, place = waste, index
        return place

    @staticmethod
    def _joined(frame: tuple[int, int, int, int], member: Member) -> tuple[int, int, int, int]:
        count, prompt_tokens, answer_tokens, own = frame
        return (
            count + 1,
            max(prompt_tokens, member.num_prompt_tokens),
            max(answer_tokens, member.expected_tokens),
            min(own, member.own_accesses),
        )
