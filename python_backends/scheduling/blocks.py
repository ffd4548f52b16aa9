"""KV blocks of one instance: who holds which, and which finished prefixes are still worth keeping.

A block is free, retained (nobody holds it, its content is kept for a later prompt with the same prefix) or used (one holder or
more, prefixes are shared). Blocks are keyed by the whole token prefix up to their end. Called by the slot scheduler alone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

import numpy as np

from python_backends.request import Ids

ROOT_KEY = b""


class BlockPool:
    """Reference-counted blocks 0 … num_blocks − 1, with retention of full blocks in least-recently-used order."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = deque(range(num_blocks))
        self._references = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._by_key: dict[bytes, int] = {}
        self._retained: OrderedDict[int, None] = OrderedDict()  # oldest first

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._retained)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_retained(self) -> int:
        return len(self._retained)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def match(self, tokens: Ids) -> tuple[list[int], list[bytes]]:
        """The longest kept prefix of `tokens` in full blocks, and the keys of those blocks. Takes no references."""
        blocks: list[int] = []
        keys: list[bytes] = []
        key = ROOT_KEY
        for end in range(self.block_tokens, len(tokens) + 1, self.block_tokens):
            key = block_key(key, tokens[end - self.block_tokens : end])
            block = self._by_key.get(key)
            if block is None:
                break
            blocks.append(block)
            keys.append(key)
        return blocks, keys

    def num_revived(self, blocks: Sequence[int]) -> int:
        """How many of `blocks`, a prefix, take as much of what is available as fresh ones: from the first that is only retained, all.

        It may be gone before they are shared, and then those behind it are not found, whoever holds them.
        """
        held = next((place for place, block in enumerate(blocks) if self._references[block] == 0), len(blocks))
        return len(blocks) - held

    def share(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._retained.pop(block, None)
            self._references[block] += 1

    def take(self, count: int) -> list[int]:
        """`count` fresh blocks, the oldest retained ones last. The caller has checked `num_available`."""
        return [self._take_one() for _ in range(count)]

    def publish(self, block: int, key: bytes) -> None:
        """Says that `block` is full and holds the KV of the prefix `key`. The first of equals is the one that is found."""
        if key not in self._by_key and self._keys[block] is None:
            self._by_key[key] = block
            self._keys[block] = key

    def drop(self, blocks: Iterable[int]) -> None:
        """Gives references back, the last block first: when memory is needed, a prefix is shortened from its end."""
        for block in reversed(list(blocks)):
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            if self._keys[block] is None:
                self._free.append(block)
            else:
                self._retained[block] = None

    def forget_retained(self) -> None:
        """Frees every retained block, as after a change of what the blocks mean."""
        while self._retained:
            self._free.append(self._evict_oldest())

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Re-derives every count from the holders' block rows. Raises AssertionError."""
        held = np.array([block for row in holders for block in row], np.int64)
        counts = np.bincount(held, minlength=self.num_blocks)
        assert counts.tolist() == self._references, "block references differ from what the slots hold"
        idle = sorted([*self._free, *self._retained])
        assert idle == [block for block in range(self.num_blocks) if counts[block] == 0], "free and retained blocks are off"
        assert all(self._keys[block] is None for block in self._free), "a free block still has a key"
        assert all(self._keys[block] == key for key, block in self._by_key.items()), "a key leads to another block"

    def _take_one(self) -> int:
        block = self._free.popleft() if self._free else self._evict_oldest()
        self._references[block] = 1
        return block

    def _evict_oldest(self) -> int:
        block, _ = self._retained.popitem(last=False)
        key = self._keys[block]
        assert key is not None
        del self._by_key[key]
        self._keys[block] = None
        return block


def block_key(prefix: bytes, tokens: Ids) -> bytes:
    """Key of the block that holds `tokens` [block_tokens] behind `prefix`: a 128-bit digest of all tokens up to its end."""
    return hashlib.blake2b(prefix + tokens.astype(np.int32).tobytes(), digest_size=16).digest()
