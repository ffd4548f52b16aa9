"""What a move is to the scheduler model: one attempt to bring a running request to another instance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from python_backends.nouns.request import Finish
from python_backends.streams.stream import Stream


class MoveReason(StrEnum):
    """Why a request moves."""

    BALANCE = "balance"  # the requests of its instance have little memory left to grow into
    DEFRAGMENT = "defragment"  # a request waits for memory there, and finds it elsewhere
    PRIORITY = "priority"  # its instance keeps memory free for requests of high priority
    DRAIN = "drain"  # its instance is to be empty
    SATURATE = "saturate"  # a request waits for a slot while another instance has a free one
    ASKED = "asked"  # by an order of an operator
    SHUFFLE = "shuffle"  # at random, for tests


class MoveOutcome(StrEnum):
    DONE = "done"
    ENDED = "ended"  # the request ended meanwhile
    REFUSED = "refused"  # the destination had no slot, memory, adapter or guide for it, or other KV blocks
    TOO_SLOW = "too_slow"  # its KV blocks became full faster than they were copied
    TIMEOUT = "timeout"  # the destination did not take it in time
    SOURCE_LOST = "source_lost"
    DESTINATION_LOST = "destination_lost"


class Phase(Enum):
    RESERVES = auto()  # the destination is asked for a slot and blocks
    COPIES = auto()  # the request decodes at the source
    SUSPENDED = auto()  # the source has sent its last token, and the destination gets the last blocks


@dataclass(slots=True, eq=False)
class Move:
    """Changed by the coordinator alone. All times are seconds of its clock."""

    number: int
    stream: Stream
    source: int
    destination: int
    reason: MoveReason
    source_request_epoch: int  # the request's life at the source
    request_epoch: int  # its life at the destination
    began_s: float
    phase: Phase = Phase.RESERVES
    outcome: MoveOutcome | None = None  # once it has ended; an instance may not know that yet
    ended_s: float = 0.0
    copies_since_s: float = 0.0
    suspended_s: float = math.inf  # when the source had stopped
    due_s: float = math.inf  # the destination must have taken it by then
    num_tokens: int = 0  # of the answer, at the hand-over

    @property
    def is_current(self) -> bool:
        """Whether the request still runs at the source, as the life that is to move."""
        return (
            self.stream.finish == Finish.RUNNING
            and self.stream.instance == self.source
            and self.stream.request_epoch == self.source_request_epoch
        )
