"""Which sequence has which slot and which blocks: gives them, takes them back, and writes the operations that
tell the engine.

Owns the slot table, the block pool, and what is promised to running sequences beyond what they hold. Decides
nothing: whose turn it is and which sequence is evicted is decided by the slot scheduler.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids, ModelLimits
from python_backends.nouns.step import Admit, Grow, Release, SlotOperation, Started
from python_backends.scheduling.state.blocks import BlockPool, add_keys
from python_backends.scheduling.state.sequence import NO_BLOCKS, Seating, Sequence
from python_backends.scheduling.state.slots import GROWTH_TOKENS, SlotTable
from python_backends.scheduling.state.view import Reserve, View


class Allocator:
    """`grows_by_need`: what is reserved for a sequence is a guess of its length. So while less than half of
    the blocks are available, a sequence gets only the block of its next token.
    """

    def __init__(self, limits: ModelLimits, reserve: Reserve, grows_by_need: bool = False) -> None:
        self.slots = SlotTable(limits.num_slots, limits.max_model_tokens)
        self.blocks = BlockPool(limits.num_blocks, limits.block_tokens)
        self._limits = limits
        self._reserve = reserve
        self._grows_by_need = grows_by_need
        self.num_promised_blocks = 0  # blocks reserved by running sequences that they don't hold yet
        self._operations: list[SlotOperation] = []
        self._started: list[Started] = []

    @property
    def has_operations(self) -> bool:
        return bool(self._operations)

    def take_operations(self) -> tuple[SlotOperation, ...]:
        """The slot operations since the last call, for the next plan."""
        operations, self._operations = self._operations, []
        return tuple(operations)

    def take_started(self) -> list[Started]:
        """The requests that got a slot since the last call."""
        started, self._started = self._started, []
        return started

    def view(self) -> View:
        return View(
            num_free_slots=self.slots.num_free,
            num_free_blocks=self.blocks.num_available - self.num_promised_blocks,
            blocks_needed=self._blocks_needed,
            max_blocks=lambda sequence: self.blocks.blocks_for(self.limit(sequence)),
            running=[*self.slots.running(), *self.slots.reserved.values()],
            num_blocks=self._limits.num_blocks - self.blocks.num_only_lent,
        )

    def seat(self, sequence: Sequence) -> int:
        """Gives `sequence` a slot and its first blocks; blocks of its prefix that are found are shared.
        Returns how many of its blocks other sequences hold as well.
        """
        found = self._found(sequence)
        num_revived = self.blocks.num_revived(found)
        self.blocks.share(found)
        limit = self.limit(sequence)
        reserved = self._reservation(sequence)
        fresh = self.blocks.allocate(max(0, min(self._blocks_to_grow(sequence), reserved) - len(found)))
        num_computed = len(found) * self._limits.block_tokens
        self.slots.seat(sequence, num_computed, limit)
        sequence.reserved_blocks, sequence.num_published = reserved, len(found)
        self.num_promised_blocks += reserved
        self._hold(sequence, found + fresh)
        self._started.append(Started(sequence.request_id, sequence.request_epoch, num_computed))
        self._operations.append(self._admission(sequence))
        return len(found) - num_revived

    def catch_up(self, slot: int) -> None:
        """Shares the blocks of its prompt that others have computed since it got its slot; its own blocks for
        them are dropped.

        A step that is already launched may still have to write the last shared block. That is safe: the
        device runs steps in order.
        """
        sequence = self.slots.sequence(slot)
        if sequence.scores_prompt:
            return
        first = sequence.num_published
        found = self.blocks.match(sequence.tokens[:-1], sequence.keys, first, sequence.root_key)
        if not found:
            return
        last, size = first + len(found), self._limits.block_tokens
        own, blocks = sequence.blocks[first:last], np.array(found, np.int32)
        self.blocks.share(found)
        self.blocks.drop(own)
        sequence.blocks = np.concatenate([sequence.blocks[:first], blocks, sequence.blocks[last:]])
        sequence.num_published = last
        num_found_tokens = last * size - int(self.slots.computed[slot])
        self.slots.skip_to(slot, last * size)
        self._started.append(Started(sequence.request_id, sequence.request_epoch, num_found_tokens))
        self._operations.append(Grow(slot, int(self.slots.generations[slot]), first, blocks))

    def next_key(self, slot: int) -> bytes | None:
        """Of the prompt block that its next token falls into; None if it would not share that block of
        another sequence.
        """
        sequence = self.slots.sequence(slot)
        index = int(self.slots.computed[slot]) // self._limits.block_tokens
        if sequence.scores_prompt or (index + 1) * self._limits.block_tokens >= len(sequence.tokens):
            return None
        return self._keys(sequence, sequence.tokens, index + 1)[index]

    def filled_keys(self, slot: int, end: int) -> list[bytes]:
        """The keys of the prompt blocks that are full once it has
        computed `end` tokens, and were not before.
        """
        sequence = self.slots.sequence(slot)
        last = end // self._limits.block_tokens
        return self._keys(sequence, sequence.tokens, last)[sequence.num_published : last]

    def shared_blocks(self, slots: NDArray[np.intp]) -> Ids:
        """[n] how many blocks of each of these slots, none of them free, others hold as well."""
        return self.blocks.num_shared([self.slots.sequence(slot).blocks for slot in slots.tolist()])

    def grow(self, sequence: Sequence) -> None:
        """Gives `sequence` blocks for its next tokens, as many as are available; the caller has made sure
        that there is at least one.

        Beyond what was reserved for it a sequence gets one block at a time: its length is not known.
        """
        slot, table = sequence.slot, self.slots
        reserved = sequence.reserved_blocks * self._limits.block_tokens
        planned = int(table.planned[slot])
        wanted = max(planned, min(planned + self._growth_tokens, int(table.limits[slot]), reserved))
        missing = self.blocks.blocks_for(wanted) - len(sequence.blocks)
        fresh = self.blocks.allocate(min(missing, max(1, self.blocks.num_available)))
        self._operations.append(
            Grow(slot, int(table.generations[slot]), len(sequence.blocks), np.array(fresh, np.int32))
        )
        self._hold(sequence, fresh)

    def unseat(self, sequence: Sequence) -> None:
        """Takes slot and blocks away; full blocks can still be found by their prefix."""
        slot = sequence.slot
        # the last known token may be a stop id without computed KV, although a step launched ahead was
        # planned for it
        computed = min(int(self.slots.computed[slot]), int(self.slots.known[slot]) - 1)
        generation = int(self.slots.generations[slot])
        self.slots.leave(sequence)
        self.publish(sequence, sequence.tokens[:computed])
        self._operations.append(Release(slot, generation))
        self._drop_blocks(sequence)

    def forget(self, sequence: Sequence) -> None:
        """What was computed for it can't be found by its prefix, not after it has left either."""
        self.blocks.forget(sequence.blocks)
        sequence.num_published = len(sequence.blocks)

    # --- sequences that move here

    def reserve(self, sequence: Sequence) -> bool:
        """Keeps a free slot for `sequence`, and blocks for its tokens so far and some that follow. Blocks of
        its tokens so far that are found are shared. False: too few blocks are available.
        """
        found = self._found(sequence)
        missing = max(0, self._blocks_to_grow(sequence) - len(found))
        if missing + self.blocks.num_revived(found) > self.blocks.num_available:
            return False
        self.blocks.share(found)
        self.slots.reserve(sequence)
        sequence.reserved_blocks, sequence.num_published = self._reservation(sequence), len(found)
        self.num_promised_blocks += sequence.reserved_blocks
        self._hold(sequence, found + self.blocks.allocate(missing))
        return True

    def extend(self, sequence: Sequence, num_blocks: int) -> bool:
        """Gives `sequence`, for which a slot is kept, blocks until it has `num_blocks`. False: too few are
        available.
        """
        missing = max(0, num_blocks - len(sequence.blocks))
        if missing > self.blocks.num_available:
            return False
        self._hold(sequence, self.blocks.allocate(missing))
        return True

    def seat_moved(self, sequence: Sequence) -> int:
        """`sequence` takes the slot that was kept for it; its blocks hold all of its tokens but the last one.
        Returns how many of its blocks other sequences hold as well.
        """
        self.publish(sequence, sequence.tokens[:-1])
        self.slots.seat_moved(sequence, self.limit(sequence))
        self._operations.append(self._admission(sequence))
        return int(self.blocks.num_shared([sequence.blocks])[0])

    def free_reserved(self, sequence: Sequence) -> None:
        """`sequence` does not move here. What it has published can still be found."""
        self.slots.free_reserved(sequence)
        self._drop_blocks(sequence)

    def publish(self, sequence: Sequence, computed: Ids) -> None:
        """Makes the full blocks of its leading tokens `computed` [n] findable."""
        last = len(computed) // self._limits.block_tokens
        keys = self._keys(sequence, computed, last)
        for index in range(sequence.num_published, last):
            self.blocks.publish(int(sequence.blocks[index]), keys[index])
        sequence.num_published = max(sequence.num_published, last)

    def publish_prefill(self, slot: int, end: int) -> None:
        """Makes full prompt blocks findable for later plans: safe, because the device runs steps in order."""
        self.publish(self.slots.sequence(slot), self.slots.tokens[slot, :end])

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        running, reserved = self.slots.running(), list(self.slots.reserved.values())
        self.blocks.check_integrity([sequence.blocks for sequence in running + reserved])
        assert len(running) + len(reserved) == self.slots.num_busy, (
            "busy slots differ from running and reserved sequences"
        )
        assert len(running) == int(self.slots.live.sum()), "live slots differ from running sequences"
        assert not (self.slots.suspended & ~self.slots.live).any(), "an empty slot is suspended"
        promised = sum(max(0, each.reserved_blocks - len(each.blocks)) for each in running + reserved)
        assert promised == self.num_promised_blocks, "promised blocks are off"
        assert all(self.slots.sequences[sequence.slot] is sequence for sequence in running), (
            "a sequence sits in another's slot"
        )

    def _blocks_needed(self, sequence: Sequence) -> int:
        return self._reservation(sequence) - self.seating(sequence).num_shared

    def seating(self, sequence: Sequence) -> Seating:
        """The blocks that `sequence` would take if it got a slot now."""
        found = self._found(sequence)
        num_revived = self.blocks.num_revived(found)
        wanted = min(self._blocks_to_grow(sequence), self._reservation(sequence))
        fresh = max(0, wanted - len(found))
        num_shared = len(found) - num_revived
        return Seating(fresh + num_revived, num_shared, self.blocks.num_held_once(found[:num_shared]))

    def _found(self, sequence: Sequence) -> list[int]:
        """Kept blocks of its prefix. At least one token is computed again, so that there is a row to sample
        from; all of a prompt whose tokens are scored.
        """
        if sequence.scores_prompt:
            return []
        return self.blocks.match(sequence.tokens[:-1], sequence.keys, root_key=sequence.root_key)

    def _blocks_to_grow(self, sequence: Sequence) -> int:
        """Blocks for its tokens so far and some that follow."""
        return self.blocks.blocks_for(min(len(sequence.tokens) + self._growth_tokens, self.limit(sequence)))

    @property
    def _growth_tokens(self) -> int:
        scarce = self._grows_by_need and 2 * self.blocks.num_available < self.blocks.num_blocks
        return 1 if scarce else GROWTH_TOKENS

    def _reservation(self, sequence: Sequence) -> int:
        """Blocks for the tokens that it is expected to hold at its end, at least for one more than it has."""
        expected = min(max(self._reserve(sequence), len(sequence.tokens) + 1), self.limit(sequence))
        return self.blocks.blocks_for(expected)

    def limit(self, sequence: Sequence) -> int:
        """The most tokens that it may come to hold."""
        return self._limits.most_tokens(sequence.num_prompt_tokens, sequence.request.sampling.max_tokens)

    def _admission(self, sequence: Sequence) -> Admit:
        return Admit(
            slot=sequence.slot,
            slot_generation=int(self.slots.generations[sequence.slot]),
            sampling=sequence.request.sampling,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_output_tokens=sequence.num_output_tokens,
            blocks=sequence.blocks,
            tokens=sequence.tokens,
            adapter=sequence.request.adapter,
        )

    def _hold(self, sequence: Sequence, blocks: list[int]) -> None:
        """`sequence` holds `blocks` from now on, which are not promised to it any more."""
        before = max(0, sequence.reserved_blocks - len(sequence.blocks))
        sequence.blocks = np.concatenate([sequence.blocks, np.array(blocks, np.int32)])
        self.num_promised_blocks += max(0, sequence.reserved_blocks - len(sequence.blocks)) - before
        self.slots.set_capacity(sequence.slot, len(sequence.blocks) * self._limits.block_tokens)

    def _drop_blocks(self, sequence: Sequence) -> None:
        self.blocks.drop(sequence.blocks)
        self.num_promised_blocks -= max(0, sequence.reserved_blocks - len(sequence.blocks))
        sequence.blocks, sequence.num_published, sequence.reserved_blocks = NO_BLOCKS, 0, 0

    def _keys(self, sequence: Sequence, tokens: Ids, count: int) -> list[bytes]:
        """The keys of its leading full blocks, at least the first
        `count`; `tokens` are its leading tokens.
        """
        add_keys(sequence.keys, tokens, count, self._limits.block_tokens, sequence.root_key)
        return sequence.keys
