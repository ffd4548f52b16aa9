"""What requests compete for: the only definition.

The slot scheduler uses it before it admits, and the heartbeat reports it to the scheduler model.
"""

from __future__ import annotations

from enum import StrEnum

SCARCE = 1 / 8  # slots are scarce if at most this share of them is free


class Contention(StrEnum):
    # all running and waiting requests fit at once, even at max_tokens: no prediction is needed
    AMPLE = "ample"
    SLOTS = "slots"  # at most SCARCE of the slots are free: a slot for one request makes another one wait
    MEMORY = "memory"  # slots are free, but there may be too few KV blocks


def contention_of(fits_all: bool, num_free_slots: int, num_slots: int) -> Contention:
    """`fits_all`: there are slots for all waiting requests, and blocks for
    all running and waiting ones at max_tokens.
    """
    if fits_all:
        return Contention.AMPLE
    return Contention.SLOTS if num_free_slots <= num_slots * SCARCE else Contention.MEMORY
