"""What requests compete for: the one definition.

The slot scheduler asks before it admits, and the heartbeat tells the scheduler model.
"""

from __future__ import annotations

from enum import StrEnum

SCARCE = 1 / 8  # of the slots, if no more are free


class Contention(StrEnum):
    AMPLE = "ample"  # all that run and wait fit at once, however long their answers become: order and memory need no foresight
    SLOTS = "slots"  # at most SCARCE of the slots are free: one request's gain is another one's wait
    MEMORY = "memory"  # slots are free, and KV blocks may not suffice


def contention_of(fits_all: bool, num_free_slots: int, num_slots: int) -> Contention:
    """`fits_all`: all that wait can have slots, and all that run and wait have their blocks at max_tokens."""
    if fits_all:
        return Contention.AMPLE
    return Contention.SLOTS if num_free_slots <= num_slots * SCARCE else Contention.MEMORY
