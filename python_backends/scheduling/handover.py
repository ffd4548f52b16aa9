"""How a running request leaves this instance and goes on in another one, with its KV blocks.

At the source a copy reads full blocks while the request decodes on; then the request is held, the launched
steps are booked, and its tokens and last block follow. At the destination a slot and blocks are reserved,
blocks are imported, and the request is adopted: it decodes at once, without a prefill, so it computes the
very numbers that it would have computed at the source.

Owns the reservations by the number of their move. Sends and copies nothing, and decides nothing: which
request moves, and when, is decided by the scheduler model. Called by the instance's loop thread alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from python_backends.nouns.request import Ids, Request
from python_backends.scheduling.adapters import LoadedAdapters
from python_backends.scheduling.admission import Admission
from python_backends.scheduling.plan_writer import PlanWriter
from python_backends.scheduling.state.allocator import Allocator
from python_backends.scheduling.state.roster import Roster
from python_backends.scheduling.state.sequence import Sequence, Status, check_ids


class RefusedMove(Exception):  # noqa: N818 (nothing is wrong: it is an answer)
    """This instance can't take a request now. `why`: slots, memory or model."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Requests(Protocol):
    """The slot scheduler, which owns the sequences, as far as a hand-over needs it."""

    adapters: LoadedAdapters

    def new_sequence(self, request: Request, delivered: Ids, request_epoch: int, age_s: float) -> Sequence:
        """A sequence that came to the first instance `age_s` ago, and not yet to the slot scheduler. Raises
        ValueError if it doesn't fit the model.
        """

    def enter(self, sequence: Sequence, num_shared: int) -> None:
        """It runs here from now on; other sequences hold `num_shared` of its blocks as well."""


class Handover:
    def __init__(
        self,
        requests: Requests,
        roster: Roster,
        admission: Admission,
        allocator: Allocator,
        plans: PlanWriter,
        vocab_size: int,
    ) -> None:
        self._requests = requests
        self._roster = roster
        self._admission = admission
        self._vocab_size = vocab_size
        self._allocator = allocator
        self._slots = allocator.slots
        self._blocks = allocator.blocks
        self._plans = plans
        self._reserved: dict[int, Sequence] = {}  # by move

    @property
    def is_idle(self) -> bool:
        """Whether nothing is reserved and no copy reads blocks."""
        return not self._reserved and not self._blocks.is_lending

    # --- at the source

    def can_leave(self, request_id: int, request_epoch: int) -> bool:
        """Whether this life of a request runs here, is not held, and has got a token here: then its prompt is
        computed.
        """
        sequence = self._running(request_id)
        return (
            sequence is not None
            and sequence.request_epoch == request_epoch
            and not self._slots.held[sequence.slot]
            and self._num_computed(sequence) > 0
        )

    def num_full_blocks(self, request_id: int) -> int:
        """How many leading blocks of a request are full and computed by steps that have been booked: no step
        writes them any more, so another thread may read them.
        """
        return self._num_computed(self._here(request_id)) // self._blocks.block_tokens

    def take(self, request_id: int, first: int, last: int) -> Ids:
        """Blocks [first, last) of a request, for a copy: they are not used for anything else before
        `give_back`, even if the request ends.
        """
        blocks = self._here(request_id).blocks
        assert 0 <= first <= last <= len(blocks), "a request has fewer blocks"
        self._blocks.lend(blocks[first:last])
        return blocks[first:last]

    def give_back(self, blocks: Ids) -> None:
        """A copy has read `blocks` [n], which `take` gave."""
        self._blocks.give_back(blocks)
        self._admission.reopen()

    def hold(self, request_id: int) -> None:
        """No later plan computes this request, and it is not evicted. Tokens of launched steps still count,
        and may end it.
        """
        self._slots.hold(self._here(request_id).slot)
        self._plans.end_run()

    def is_settled(self, request_id: int) -> bool:
        """Whether it is held here, and all launched steps that have it have been booked."""
        sequence = self._running(request_id)
        return sequence is not None and self._slots.is_settled(sequence.slot)

    def tokens(self, request_id: int) -> Ids:
        """[n] prompt and output so far. Of a settled request all but the last one are computed."""
        slot = self._here(request_id).slot
        return self._slots.tokens[slot, : self._slots.known[slot]].copy()

    def resume(self, request_id: int, request_epoch: int) -> bool:
        """A held request decodes on in its slot, as this life of it; another life only if it is settled.
        False: it is not held here (any more), and nothing changes.
        """
        sequence = self._running(request_id)
        if sequence is None or not self._slots.held[sequence.slot]:
            return False
        is_same = sequence.request_epoch == request_epoch
        assert is_same or self._slots.is_settled(sequence.slot), "tokens of its earlier life may come"
        sequence.request_epoch = request_epoch
        self._slots.resume(sequence.slot)
        self._plans.end_run()
        return True

    # --- at the destination

    def reserve(
        self, move: int, request: Request, delivered: Ids, request_epoch: int, age_s: float = 0.0
    ) -> int:
        """Keeps a slot for `request`, and blocks for its prompt, for `delivered` [n], its output as far as it
        is known, and for some tokens that follow. `age_s`: how long ago it came to its first instance.

        Returns how many leading blocks of prompt and `delivered` are here already, and are shared. Raises
        RefusedMove.
        """
        assert move not in self._reserved, "a move has one reservation"
        try:
            sequence = self._requests.new_sequence(request, delivered, request_epoch, age_s)
        except ValueError as error:
            raise RefusedMove("model") from error
        if not self._requests.adapters.is_loaded(request.adapter):
            self._requests.adapters.want(request.adapter)
            raise RefusedMove("adapter")
        if not self._slots.num_free:
            raise RefusedMove("slots")
        if not self._admission.fits(sequence) or not self._allocator.reserve(sequence):
            raise RefusedMove("memory")
        self._reserved[move] = sequence
        return sequence.num_published

    def blocks_of(self, move: int, first: int, last: int) -> Ids:
        """Blocks [first, last) of the request, to import into; more are taken if it has fewer.

        Raises ValueError if other sequences may read one of them, or if the request never has so many, and
        RefusedMove if too few are available.
        """
        sequence = self._reserved[move]
        most = self._blocks.blocks_for(self._allocator.limit(sequence))
        if not sequence.num_published <= first <= last <= most:
            raise ValueError(f"blocks [{first}, {last}): must be between {sequence.num_published} and {most}")
        if not self._allocator.extend(sequence, last):
            raise RefusedMove("memory")
        return sequence.blocks[first:last]

    def publish(self, move: int, tokens: Ids) -> None:
        """The full blocks of these leading tokens [n] of prompt and output have been imported: from now on
        other requests that begin alike find them.
        """
        sequence = self._reserved[move]
        assert self._blocks.blocks_for(len(tokens)) <= len(sequence.blocks), "blocks were not imported"
        self._allocator.publish(sequence, tokens)

    def adopt(self, move: int, tokens: Ids) -> int:
        """The request goes on here after `tokens` [n], prompt and output; the blocks of all but the last one
        have been imported. It decodes in the next plan. An earlier life of it here ends.

        Returns the index of its first token here, in its answer. Raises ValueError if these are not tokens of
        this request; the reservation stays then.
        """
        sequence = self._reserved[move]
        self._check(sequence, tokens)
        del self._reserved[move]
        sequence.tokens = tokens.astype(np.int32)
        self._requests.enter(sequence, self._allocator.seat_moved(sequence))
        return sequence.num_output_tokens

    def drop(self, move: int) -> None:
        """The request does not move here: its slot and blocks are free. Published blocks can still be found.
        No copy may write its blocks any more.
        """
        self._allocator.free_reserved(self._reserved.pop(move))
        self._admission.reopen()

    def abandon_all(self) -> None:
        """Drops all reservations, and lets held requests decode on. Blocks that copies read stay until these
        give them back.
        """
        for move in list(self._reserved):
            self.drop(move)
        for sequence in self._slots.running():
            self.resume(sequence.request_id, sequence.request_epoch)

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        slots = {sequence.slot: sequence.request_id for sequence in self._reserved.values()}
        kept = {slot: sequence.request_id for slot, sequence in self._slots.reserved.items()}
        assert slots == kept, "reserved slots differ from the moves to here"

    def _check(self, sequence: Sequence, tokens: Ids) -> None:
        """Raises ValueError."""
        count, most = len(tokens), self._allocator.limit(sequence)
        if not sequence.num_prompt_tokens < count < most:
            raise ValueError(
                f"{count} tokens: must be more than {sequence.num_prompt_tokens}, fewer than {most}"
            )
        if not np.array_equal(tokens[: len(sequence.tokens)], sequence.tokens):
            raise ValueError("these tokens begin with those of another request")
        check_ids(sequence.request, tokens[sequence.num_prompt_tokens :], self._vocab_size)
        if self._blocks.blocks_for(count - 1) > len(sequence.blocks):
            raise ValueError(f"{count} tokens: only {len(sequence.blocks)} blocks were imported")

    def _num_computed(self, sequence: Sequence) -> int:
        """Its leading tokens that booked steps have computed; 0 before it has got a token here: blocks that
        it shares may still be computed by launched steps then.
        """
        known = int(self._slots.known[sequence.slot])
        return known - 1 if known > len(sequence.tokens) else 0

    def _here(self, request_id: int) -> Sequence:
        sequence = self._running(request_id)
        assert sequence is not None, "the request does not run here"
        return sequence

    def _running(self, request_id: int) -> Sequence | None:
        sequence = self._roster.find(request_id)
        return sequence if sequence is not None and sequence.status is Status.RUNNING else None
