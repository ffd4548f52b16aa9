"""What a policy sees of slots and blocks when it decides which requests are admitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from python_backends.scheduling.state.sequence import Sequence

Reserve = Callable[[Sequence], int]  # tokens that a sequence is expected to hold at its end


@dataclass(frozen=True, slots=True)
class View:
    """What is free before this step's admissions."""

    num_free_slots: int
    num_free_blocks: int  # neither used nor promised to a running sequence
    blocks_needed: Callable[[Sequence], int]  # blocks that admitting it would use or promise
    max_blocks: Callable[[Sequence], int]  # blocks that it holds if it uses all of max_tokens
    running: list[Sequence]  # and those for which a slot is kept
    # but for those that no sequence holds and that a copy to another instance, or the engine, still reads
    num_blocks: int
    # reserves its future memory; False: it does not fit
    try_reserve: Callable[[Sequence], bool] = lambda sequence: False
    # it has been passed over for too long: none may go before it
    is_overdue: Callable[[Sequence], bool] = lambda sequence: True
