"""Admission: what requests compete for, which waiting sequences get a slot, by the policy, and when that is
to be looked at again.

Owns what is known since the last look; changes neither the waiting list nor the slots. Called by the slot
scheduler, which gives the slots.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from itertools import islice

from python_backends.nouns.request import WaitReason
from python_backends.scheduling.adapters import LoadedAdapters
from python_backends.scheduling.guides import GuidesOfWaiting
from python_backends.scheduling.outlook import Outlook
from python_backends.scheduling.policies.policy import Policy
from python_backends.scheduling.state.allocator import Allocator
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.state.view import View
from python_backends.scheduling.waiting import WaitingList

SCARCE = 1 / 8  # slots are scarce if at most this share of them is free


class Contention(StrEnum):
    """What requests compete for: the only definition."""

    # all running and waiting requests fit at once, even at max_tokens: no prediction is needed
    AMPLE = "ample"
    SLOTS = "slots"  # at most SCARCE of the slots are free: a slot for one request makes another one wait
    MEMORY = "memory"  # slots are free, but there may be too few KV blocks


class Admission:
    def __init__(
        self,
        policy: Policy,
        allocator: Allocator,
        outlook: Outlook,
        waiting: WaitingList,
        adapters: LoadedAdapters,
        guides: GuidesOfWaiting,
    ) -> None:
        self._policy = policy
        self._allocator = allocator
        self._slots = allocator.slots
        self._outlook = outlook
        self._waiting = waiting
        self._adapters, self._guides = adapters, guides
        self._may_admit = True  # something has changed since the last admission
        self._lacks_memory = False  # at the last admission a request waited although a slot was free

    @property
    def contention(self) -> Contention:
        """What requests compete for at present."""
        fits_all = len(self._waiting) <= self._slots.num_free
        if fits_all and self._policy.looks_ahead:
            fits_all = self._outlook.future.holds_all([*self._waiting, *self._slots.reserved.values()])
        elif fits_all:
            fits_all = not self._waiting
        return contention_of(fits_all, self._slots.num_free, self._slots.num_slots)

    @property
    def wait_reason(self) -> WaitReason | None:
        """Why requests wait in this instance; None: none does."""
        if not self._waiting:
            return None
        if not self._slots.num_free:
            return WaitReason.SLOT
        if self._adapters.wanted is not None:
            return WaitReason.ADAPTER
        if self._guides.missing:
            return WaitReason.GUIDE
        return WaitReason.MEMORY if self._lacks_memory else WaitReason.STEP

    @property
    def is_due(self) -> bool:
        """Whether a request may get a slot now that could not before."""
        return self._may_admit and self._slots.num_free > 0 and bool(self._waiting)

    def follow(self, policy: Policy) -> None:
        """Admits by `policy` from now on."""
        self._policy = policy

    def reopen(self) -> None:
        """Something has changed: requests that wait may get a slot."""
        self._may_admit = True

    def refresh(self) -> None:
        """Computes the order of the waiting and the future memory again, if that is due."""
        if not self._waiting:
            return
        contention = self.contention
        if contention is Contention.AMPLE:
            others_come = self._outlook.forget_if_old()
        else:
            others_come = self._outlook.refresh(
                contention is Contention.SLOTS, self._first_waiting, self._can_go
            )
        self._may_admit |= others_come

    def select(self) -> list[Sequence]:
        """The waiting sequences that are to get a slot now, one after the other."""
        return self._policy.select(self._guides.seatable(self._adapters.seatable()), self._view())

    def settle(self) -> None:
        """Those that were selected have their slots."""
        # with look-ahead: after the next change or refresh
        self._may_admit = not self._policy.looks_ahead
        self._lacks_memory = bool(self._waiting) and self._slots.num_free > 0

    def fits(self, sequence: Sequence) -> bool:
        """Whether there are blocks for it now, and for what it will need."""
        view = self._view()
        if self._policy.looks_ahead:
            return view.try_reserve(sequence)
        return view.blocks_needed(sequence) <= view.num_free_blocks

    def _view(self) -> View:
        view = replace(self._allocator.view(), is_overdue=self._waiting.is_overdue)
        if not self._policy.looks_ahead:
            return view
        return replace(view, try_reserve=self._outlook.future.trial())

    def _first_waiting(self, count: int) -> list[Sequence]:
        return list(islice(self._waiting.in_order(self._adapters.is_open), count))

    def _can_go(self, sequence: Sequence) -> bool:
        """Whether nothing but a slot and memory keeps it waiting."""
        return self._adapters.is_open(sequence.request.adapter.digest) and self._guides.is_ready(sequence)


def contention_of(fits_all: bool, num_free_slots: int, num_slots: int) -> Contention:
    """`fits_all`: there are slots for all waiting requests, and blocks for
    all running and waiting ones at max_tokens.
    """
    if fits_all:
        return Contention.AMPLE
    return Contention.SLOTS if num_free_slots <= num_slots * SCARCE else Contention.MEMORY
