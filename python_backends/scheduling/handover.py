"""What the slot scheduler does for a running request that goes on in another instance, with its KV blocks.

At the source a copy reads full blocks while the request decodes on; then the request is suspended, the
launched steps are booked, and its tokens and last block follow. At the destination a slot and blocks are
reserved, blocks are imported, and the request is adopted: it decodes at once, without a prefill, so it
computes the very numbers that it would have computed at the source.

Has no state of its own: who holds what stands in the slot table and in the block pool. Called by `moving`, in
the instance's loop thread alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from python_backends.nouns.moves import Refusal
from python_backends.nouns.request import Ids
from python_backends.scheduling.adapters import LoadedAdapters
from python_backends.scheduling.admission import Admission
from python_backends.scheduling.plan_writer import PlanWriter
from python_backends.scheduling.state.allocator import Allocator
from python_backends.scheduling.state.sequence import Sequence, check_ids


class RefusedMove(Exception):  # noqa: N818 (nothing is wrong: it is an answer)
    """This instance can't take a request now."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why: Refusal = why


class Handover:
    def __init__(
        self,
        allocator: Allocator,
        admission: Admission,
        plans: PlanWriter,
        adapters: LoadedAdapters,
        enter: Callable[[Sequence, int], None],
        vocab_size: int,
    ) -> None:
        """`enter`: a sequence runs here from now on; other sequences hold so many of its blocks as well."""
        self._allocator = allocator
        self._slots, self._blocks = allocator.slots, allocator.blocks
        self._admission = admission
        self._plans = plans
        self._adapters = adapters
        self._enter = enter
        self._vocab_size = vocab_size

    @property
    def is_idle(self) -> bool:
        """Whether nothing is reserved and no copy reads blocks."""
        return not self._slots.num_reserved and not self._blocks.is_lending

    def abandon_all(self) -> None:
        """Drops all reservations."""
        for sequence in list(self._slots.reserved.values()):
            self.drop(sequence)

    # --- at the source, of a sequence that runs here

    def can_leave(self, sequence: Sequence) -> bool:
        """Whether it is not suspended, and has got a token here: then its prompt is computed."""
        return not self._slots.suspended[sequence.slot] and self._num_computed(sequence) > 0

    def num_full_blocks(self, sequence: Sequence) -> int:
        """How many of its leading blocks are full and computed by steps that have been booked: no step writes
        them any more, so another thread may read them.
        """
        return self._num_computed(sequence) // self._blocks.block_tokens

    def lend(self, sequence: Sequence, first: int, last: int) -> Ids:
        """Its blocks [first, last), for a copy: they are not used for anything else before `give_back`, even
        if the request ends.
        """
        blocks = sequence.blocks[first:last]
        assert len(blocks) == last - first >= 0, "it has fewer blocks"
        self._blocks.lend(blocks)
        return blocks

    def give_back(self, blocks: Ids) -> None:
        """A copy has read `blocks` [n], which `lend` gave."""
        if len(blocks):
            self._blocks.give_back(blocks)
            self._admission.reopen()

    def suspend(self, sequence: Sequence) -> None:
        """No later plan computes it, and it is not evicted. Tokens of launched steps still count, and may end
        it.
        """
        self._slots.suspend(sequence.slot)
        self._plans.end_run()

    def tokens(self, sequence: Sequence) -> Ids:
        """[n] prompt and output so far. Of a settled sequence all but the last one are computed."""
        return self._slots.tokens[sequence.slot, : self._slots.known[sequence.slot]].copy()

    def resume(self, sequence: Sequence, request_epoch: int) -> None:
        """A suspended sequence decodes on in its slot, as this life of its request; as another life only if
        it is settled.
        """
        is_same = sequence.request_epoch == request_epoch
        assert is_same or self._slots.is_settled(sequence.slot), "tokens of its earlier life may come"
        sequence.request_epoch = request_epoch
        self._slots.resume(sequence.slot)
        self._plans.end_run()

    # --- at the destination, of a sequence that is about to move here

    def reserve(self, sequence: Sequence) -> None:
        """Keeps a slot for it, and blocks for its tokens so far and for some that follow. The first
        `sequence.num_published` of them are here already, and are shared. Raises RefusedMove.
        """
        if not self._adapters.is_loaded(sequence.request.adapter):
            self._adapters.want(sequence.request.adapter)
            raise RefusedMove("adapter")
        if not self._slots.num_free:
            raise RefusedMove("slots")
        if not self._admission.fits(sequence) or not self._allocator.reserve(sequence):
            raise RefusedMove("memory")

    def extend(self, sequence: Sequence, first: int, last: int) -> Ids:
        """Its blocks [first, last), to import into; it gets more if it has fewer.

        Raises ValueError if other sequences may read one of them, or if it never has so many, and RefusedMove
        if too few are available.
        """
        most = self._blocks.blocks_for(self._allocator.limit(sequence))
        if not sequence.num_published <= first <= last <= most:
            raise ValueError(f"blocks [{first}, {last}): must be between {sequence.num_published} and {most}")
        if not self._allocator.extend(sequence, last):
            raise RefusedMove("memory")
        return sequence.blocks[first:last]

    def publish(self, sequence: Sequence, tokens: Ids) -> None:
        """The full blocks of these leading tokens [n] of prompt and output have been imported: from now on
        other requests that begin alike find them.
        """
        assert self._blocks.blocks_for(len(tokens)) <= len(sequence.blocks), "blocks were not imported"
        self._allocator.publish(sequence, tokens)

    def adopt(self, sequence: Sequence, tokens: Ids) -> None:
        """It goes on here after `tokens` [n], prompt and output; the blocks of all but the last one have been
        imported. It decodes in the next plan. An earlier life of its request here ends.

        Raises ValueError if these are not tokens of its request; the reservation stays then.
        """
        self._check(sequence, tokens)
        sequence.tokens = tokens.astype(np.int32)
        self._enter(sequence, self._allocator.seat_moved(sequence))

    def drop(self, sequence: Sequence) -> None:
        """It does not move here: its slot and blocks are free. Published blocks can still be found. No copy
        may write its blocks any more.
        """
        self._allocator.free_reserved(sequence)
        self._admission.reopen()

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
