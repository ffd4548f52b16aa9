"""Who has which slot and which blocks: gives them, takes them back, and writes the operations that tell the engine.

Owns the slot table, the block pool, and what is promised to running sequences beyond what they hold. Decides nothing: whose turn it is
and who makes way is the slot scheduler's business, its only caller.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from python_backends.request import Ids, ModelLimits
from python_backends.scheduling.blocks import ROOT_KEY, BlockPool, block_key
from python_backends.scheduling.policies import Reserve, View
from python_backends.scheduling.sequence import Sequence
from python_backends.scheduling.slots import GROWTH_TOKENS, SlotTable
from python_backends.step import Admit, Grow, Release, SlotOperation, Started


class Allocator:
    """`lean`: what is reserved is a guess and no promise, so while less than half of the blocks are available, a sequence gets only
    those that its next token needs.
    """

    def __init__(self, limits: ModelLimits, reserve: Reserve, lean: bool = False) -> None:
        self.slots = SlotTable(limits.num_slots, limits.max_model_tokens)
        self.blocks = BlockPool(limits.num_blocks, limits.block_tokens)
        self._limits = limits
        self._reserve = reserve
        self._lean = lean
        self._promised = 0  # blocks reserved by running sequences that they don't hold yet
        self._operations: list[SlotOperation] = []
        self._started: list[Started] = []

    @property
    def has_operations(self) -> bool:
        return bool(self._operations)

    def take_operations(self) -> tuple[SlotOperation, ...]:
        """What has changed since this was last asked, for the next plan."""
        operations, self._operations = self._operations, []
        return tuple(operations)

    def take_started(self) -> list[Started]:
        """Who got a slot since this was last asked."""
        started, self._started = self._started, []
        return started

    @property
    def num_promised_blocks(self) -> int:
        return self._promised

    def view(self) -> View:
        return View(
            num_free_slots=self.slots.num_free,
            num_free_blocks=self.blocks.num_available - self._promised,
            blocks_needed=self._blocks_needed,
            max_blocks=lambda sequence: self.blocks.blocks_for(self._limit(sequence)),
            running=self.slots.running(),
            num_slots=self._limits.num_slots,
            num_blocks=self._limits.num_blocks,
        )

    def seat(self, sequence: Sequence) -> None:
        """A slot and the first blocks; those of its prefix that are found are shared."""
        # at least one token is computed anew, so that there is a row to sample from
        shared, keys = self.blocks.match(sequence.tokens[:-1])
        self.blocks.share(shared)
        limit = self._limit(sequence)
        reserved = self._reservation(sequence)
        fresh = self.blocks.take(max(0, self._first_blocks(sequence, reserved) - len(shared)))
        num_computed = len(shared) * self._limits.block_tokens
        slot = self.slots.seat(sequence, num_computed, limit)
        sequence.reserved_blocks, sequence.keys = reserved, keys
        self._promised += reserved
        self._hold(sequence, shared + fresh)
        self._started.append(Started(sequence.request_id, sequence.epoch, num_computed))
        self._operations.append(self._admission(sequence, slot))

    def grow(self, sequence: Sequence) -> None:
        """Blocks for its next tokens, as far as there are any; the caller has seen to it that there is one.

        Beyond what was reserved for it a sequence gets one block at a time: nobody knows how far it will go.
        """
        slot, table = sequence.slot, self.slots
        reserved = sequence.reserved_blocks * self._limits.block_tokens
        planned = int(table.planned[slot])
        wanted = max(planned, min(planned + self._growth_tokens, int(table.limits[slot]), reserved))
        missing = self.blocks.blocks_for(wanted) - len(sequence.blocks)
        fresh = self.blocks.take(min(missing, max(1, self.blocks.num_available)))
        self._operations.append(Grow(slot, int(table.epochs[slot]), len(sequence.blocks), np.array(fresh, np.int32)))
        self._hold(sequence, fresh)

    def unseat(self, sequence: Sequence) -> None:
        """Takes slot and blocks away; full blocks stay findable by their prefix."""
        slot = sequence.slot
        # the last known token may be a stop that no engine has computed, although a step launched ahead was planned to
        computed = min(int(self.slots.computed[slot]), int(self.slots.known[slot]) - 1)
        epoch = int(self.slots.epochs[slot])
        self.slots.leave(sequence)
        self._publish_blocks(sequence, sequence.tokens[:computed])
        self._operations.append(Release(slot, epoch))
        self.blocks.drop(sequence.blocks)
        self._promised -= max(0, sequence.reserved_blocks - len(sequence.blocks))
        sequence.blocks, sequence.keys, sequence.reserved_blocks = [], [], 0

    def rewrite(self) -> None:
        """Everything that the engine holds of every slot, once more: what a step would cost without static slots."""
        self.slots.write_tokens()
        for sequence in self.slots.running():
            slot, known = sequence.slot, int(self.slots.known[sequence.slot])
            num_output_tokens, tokens = known - sequence.num_prompt_tokens, self.slots.tokens[slot, :known].copy()
            admission = self._admission(sequence, slot)
            self._operations.append(replace(admission, num_output_tokens=num_output_tokens, tokens=tokens))

    def publish_prefill(self, slot: int, end: int) -> None:
        """Full prompt blocks are shared from the next plan on: the device runs steps in order."""
        sequence = self.slots.sequences[slot]
        assert sequence is not None
        self._publish_blocks(sequence, self.slots.tokens[slot, :end])

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        running = self.slots.running()
        self.blocks.check_integrity([sequence.blocks for sequence in running])
        assert len(running) == self.slots.num_busy == int(self.slots.live.sum()), "busy slots differ from running sequences"
        promised = sum(max(0, sequence.reserved_blocks - len(sequence.blocks)) for sequence in running)
        assert promised == self._promised, "promised blocks are off"
        assert all(self.slots.sequences[sequence.slot] is sequence for sequence in running), "a sequence sits in another's slot"

    def _blocks_needed(self, sequence: Sequence) -> int:
        shared, _ = self.blocks.match(sequence.tokens[:-1])
        return self._reservation(sequence) - len(shared) + self.blocks.num_revived(shared)

    def blocks_now(self, sequence: Sequence) -> int:
        """Available blocks that seating it would take at once."""
        shared, _ = self.blocks.match(sequence.tokens[:-1])
        fresh = max(0, self._first_blocks(sequence, self._reservation(sequence)) - len(shared))
        return fresh + self.blocks.num_revived(shared)

    def _first_blocks(self, sequence: Sequence, reserved: int) -> int:
        return min(self.blocks.blocks_for(min(len(sequence.tokens) + self._growth_tokens, self._limit(sequence))), reserved)

    @property
    def _growth_tokens(self) -> int:
        scarce = self._lean and 2 * self.blocks.num_available < self.blocks.num_blocks
        return 1 if scarce else GROWTH_TOKENS

    def _reservation(self, sequence: Sequence) -> int:
        """Blocks for the tokens it is expected to hold at its end, at least for one more than it has."""
        expected = min(max(self._reserve(sequence), len(sequence.tokens) + 1), self._limit(sequence))
        return self.blocks.blocks_for(expected)

    def _limit(self, sequence: Sequence) -> int:
        return min(sequence.request.max_total_tokens, self._limits.max_model_tokens)

    def _admission(self, sequence: Sequence, slot: int) -> Admit:
        return Admit(
            slot=slot,
            epoch=int(self.slots.epochs[slot]),
            sampling=sequence.request.sampling,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_output_tokens=sequence.num_output_tokens,
            blocks=np.array(sequence.blocks, np.int32),
            tokens=sequence.tokens,
        )

    def _hold(self, sequence: Sequence, blocks: list[int]) -> None:
        """`sequence` holds `blocks` from now on: so many fewer are promised to it."""
        before = max(0, sequence.reserved_blocks - len(sequence.blocks))
        sequence.blocks += blocks
        self._promised += max(0, sequence.reserved_blocks - len(sequence.blocks)) - before
        self.slots.capacity[sequence.slot] = len(sequence.blocks) * self._limits.block_tokens

    def _publish_blocks(self, sequence: Sequence, computed: Ids) -> None:
        """Makes the full blocks among `computed` [tokens] findable."""
        size = self._limits.block_tokens
        for index in range(len(sequence.keys), len(computed) // size):
            prefix = sequence.keys[-1] if sequence.keys else ROOT_KEY
            key = block_key(prefix, computed[index * size : (index + 1) * size])
            sequence.keys.append(key)
            self.blocks.publish(sequence.blocks[index], key)
