"""The block pool against plain lists: blocks are taken, shared,
published, dropped, revived, recycled and borrowed in any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from python_backends.scheduling.state.blocks import ROOT_KEY, BlockPool, block_key
from tests.support.examples import examples

BLOCKS, SIZE = 10, 2
Prefix = tuple[int, ...]


class Row:
    """One holder: its tokens, the blocks that they lie in, and how many of those it has published."""

    def __init__(self, tokens: list[int], blocks: list[int], keys: list[bytes]) -> None:
        self.tokens, self.blocks, self.keys = tokens, blocks, keys

    def prefix(self, index: int) -> Prefix:
        """All tokens up to the end of its block number `index`."""
        return tuple(self.tokens[: (index + 1) * SIZE])

    @property
    def num_unpublished(self) -> int:
        return len(self.tokens) // SIZE - len(self.keys)


class BlockStates(RuleBasedStateMachine):
    """The model knows what was written into each block, and keeps
    lists of the free and of the retained ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, SIZE)
        self.rows: list[Row] = []
        self.free = list(range(BLOCKS))  # the next to be taken first
        self.retained: list[int] = []  # oldest first
        self.borrowed: list[int] = []
        self.num_revocations = 0
        self.written: dict[int, Prefix] = {}  # what lies in a block: all tokens up to its end
        self.published: dict[Prefix, int] = {}

    # few tokens, so that prompts begin alike, are equal, or part behind some blocks
    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def hold(self, tokens: list[int]) -> None:
        """As a sequence that gets a slot: what is found is shared, the rest is computed in fresh blocks."""
        found, keys = self.find(tokens)
        missing = self.pool.blocks_for(len(tokens)) - len(found)
        first_retained = next(
            (place for place, block in enumerate(found) if block in self.retained), len(found)
        )
        assert self.pool.num_revived(found) == len(found[first_retained:])
        if missing + self.pool.num_revived(found) > self.pool.num_available:
            return
        self.pool.share(found)
        self.retained = [block for block in self.retained if block not in found]
        row = Row(tokens, found + self.take(missing), keys)
        for index in range(len(found), len(tokens) // SIZE):
            self.written[row.blocks[index]] = row.prefix(index)
        self.rows.append(row)

    @rule(tokens=st.lists(st.integers(0, 1), max_size=9))
    def look(self, tokens: list[int]) -> None:
        self.find(tokens)

    @precondition(lambda self: any(row.num_unpublished for row in self.rows))
    @rule(data=st.data())
    def publish(self, data: Any) -> None:
        row = data.draw(st.sampled_from([row for row in self.rows if row.num_unpublished]))
        for _ in range(data.draw(st.integers(1, row.num_unpublished))):
            index = len(row.keys)
            before = row.keys[-1] if row.keys else ROOT_KEY
            row.keys.append(block_key(before, np.array(row.prefix(index)[-SIZE:], np.int32)))
            self.pool.publish(row.blocks[index], row.keys[-1])
            self.published.setdefault(row.prefix(index), row.blocks[index])

    @precondition(lambda self: self.rows and self.pool.num_available)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: Any, token: int) -> None:
        """A sequence that goes on: one token more, and a fresh block where the last one is full."""
        row = data.draw(st.sampled_from(self.rows))
        if len(row.tokens) % SIZE == 0:
            row.blocks += self.take(1)
        row.tokens.append(token)
        if len(row.tokens) % SIZE == 0:
            self.written[row.blocks[-1]] = tuple(row.tokens)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        row = data.draw(st.sampled_from(self.rows))
        self.rows.remove(row)
        self.pool.drop(row.blocks)
        held = {block for other in self.rows for block in other.blocks}
        for block in reversed(row.blocks):
            if block not in held:
                (self.retained if block in self.published.values() else self.free).append(block)

    @precondition(lambda self: (self.free or self.retained) and not self.borrowed)
    @rule(data=st.data())
    def borrow(self, data: Any) -> None:
        """As training does, whose blocks others may take at any time."""
        count = data.draw(st.integers(1, len(self.free) + len(self.retained)))
        self.borrowed = [self.free.pop() if self.free else self.recycle() for _ in range(count)]
        assert self.pool.borrow(count, self.revoke).tolist() == self.borrowed

    @rule()
    def return_borrowed(self) -> None:
        self.pool.return_borrowed()
        self.free, self.borrowed = [*self.free, *self.borrowed], []

    def revoke(self) -> None:
        assert self.pool.num_borrowed, "the blocks are still those of training while it is told"
        self.num_revocations += 1

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        used = {block for row in self.rows for block in row.blocks}
        assert sorted([*self.free, *self.retained, *self.borrowed, *used]) == list(range(BLOCKS))
        assert (self.pool.num_used, self.pool.num_retained) == (len(used), len(self.retained))
        assert self.pool.num_available == len(self.free) + len(self.retained) + len(self.borrowed)
        assert self.pool.num_borrowed == len(self.borrowed)
        assert self.pool.num_borrowable == len(self.free) + len(self.retained)
        self.pool.check_integrity([row.blocks for row in self.rows])

    @invariant()
    def what_is_published_is_found_and_holds_exactly_these_tokens(self) -> None:
        for prefix in self.published:
            self.find(list(prefix))

    def find(self, tokens: list[int]) -> tuple[list[int], list[bytes]]:
        """What the pool finds of `tokens`: the longest run of published blocks, and
        nothing else has been written into them since.
        """
        keys: list[bytes] = []
        blocks = self.pool.match(np.array(tokens, np.int32), keys)
        prefixes = [tuple(tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)]
        expected = next(
            (index for index, prefix in enumerate(prefixes) if prefix not in self.published), len(prefixes)
        )
        assert blocks == [self.published[prefix] for prefix in prefixes[:expected]]
        assert [self.written[block] for block in blocks] == prefixes[:expected]
        assert len(blocks) == len(set(blocks))
        return blocks, keys[: len(blocks)]

    def take(self, count: int) -> list[int]:
        before, expected = self.num_revocations, [self.next_block() for _ in range(count)]
        revoked, self.num_revocations = self.num_revocations - before, before
        assert self.pool.allocate(count) == expected, (
            "free blocks are given out first, then what was wanted longest ago, then what is borrowed"
        )
        assert self.num_revocations == before + revoked, "training was told that its blocks are taken"
        return expected

    def next_block(self) -> int:
        if not self.free and not self.retained:
            self.free, self.borrowed = self.borrowed, []
            self.num_revocations += 1
        return self.free.pop(0) if self.free else self.recycle()

    def recycle(self) -> int:
        block = self.retained.pop(0)
        self.published = {prefix: other for prefix, other in self.published.items() if other != block}
        del self.written[block]
        return block


TestBlockStates = BlockStates.TestCase
TestBlockStates.settings = settings(examples, stateful_step_count=50)


def test_a_prefix_is_shortened_from_its_end() -> None:
    """Three blocks are kept; the one taken for other tokens is the last, so the first two are still found."""
    pool, tokens, key = BlockPool(3, SIZE), np.array([5, 6, 7, 8, 9, 10], np.int32), ROOT_KEY
    blocks = pool.allocate(3)
    for index, block in enumerate(blocks):
        key = block_key(key, tokens[index * SIZE : (index + 1) * SIZE])
        pool.publish(block, key)
    pool.drop(blocks)
    assert pool.allocate(1) == blocks[2:]
    assert pool.match(tokens, []) == blocks[:2]
