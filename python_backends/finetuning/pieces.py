"""What is computed of a job between two steps of serving: one piece after the other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from python_backends.nouns.training import Loads, Pack
from python_backends.scheduling.piece_time import NOTHING, loads, loss_loads


class Kind(StrEnum):
    BEGIN = "begin"  # of a mini-batch: another job may be trained before it
    PACK = "pack"  # the next one gets its memory
    MEMORY = "memory"  # a pack waits for KV blocks that requests hold
    FORWARD = "forward"  # a tile
    LOSS = "loss"
    BACKWARD = "backward"  # a tile
    MEASURED = "measured"  # the loss of the held-out examples is known
    CLIP = "clip"
    UPDATE = "update"
    SAVE = "save"
    WAIT = "wait"  # for files that are written meanwhile
    END = "end"  # nothing comes any more, and job.json says how the job has ended


@dataclass(frozen=True, slots=True)
class Piece:
    """Where it has a pack, tokens [first, last) are left, and the caller says how many of them it has at
    most: the first ones, or backward the last ones.
    """

    kind: Kind
    pack: Pack | None = None
    first: int = 0
    last: int = 0

    def loads(self, tokens: int) -> Loads:
        """With at most `tokens` tokens."""
        if self.pack is None:
            return NOTHING
        if self.kind == Kind.BACKWARD:
            return loads(self.pack, max(self.first, self.last - tokens), self.last)
        loads_of = loss_loads if self.kind == Kind.LOSS else loads
        return loads_of(self.pack, self.first, min(self.last, self.first + tokens))
