"""KV blocks of one instance: which sequence holds which, and which finished prefixes are still worth keeping.

A block is free, retained (no sequence holds it, its content is kept for a later prompt with the same prefix)
or used (one holder or more, prefixes are shared). Blocks are keyed by the whole token prefix up to their end.
A block that is lent is read by a copy to another instance: it counts as used until it is given back. A block
that is borrowed is memory of training: it counts as free, and is taken back when no other block is left.
Called by the slot scheduler, and by training for what it borrows.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from python_backends.nouns.request import Ids

ROOT_KEY = b""


class BlockPool:
    """Reference-counted blocks 0 … num_blocks − 1, with retention of
    full blocks in least-recently-used order.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = deque(range(num_blocks))
        self._references: Ids = np.zeros(num_blocks, np.int32)
        self._lent: Ids = np.zeros(num_blocks, np.int32)  # references of copies
        self._num_lent = 0  # their sum
        self._keys: list[bytes | None] = [None] * num_blocks
        self._by_key: dict[bytes, int] = {}
        self._retained: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._borrowed: list[int] = []
        self._on_revoke: Callable[[], None] = lambda: None

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._retained) + len(self._borrowed)

    @property
    def num_borrowable(self) -> int:
        return len(self._free) + len(self._retained)

    @property
    def num_borrowed(self) -> int:
        return len(self._borrowed)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_retained(self) -> int:
        return len(self._retained)

    @property
    def is_lending(self) -> bool:
        return self._num_lent > 0

    @property
    def num_only_lent(self) -> int:
        """Blocks that no sequence holds any more, and that copies still read."""
        if not self._num_lent:
            return 0
        return int(np.count_nonzero((self._lent > 0) & (self._lent == self._references)))

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def match(self, tokens: Ids, keys: list[bytes], first: int = 0, root_key: bytes = ROOT_KEY) -> list[int]:
        """The kept blocks of `tokens` from the full block number `first` on, up to the first that is not
        kept. Takes no references.

        `keys` are those of the leading blocks of `tokens`; missing ones are added as far as they are
        needed. `root_key`: blocks are found only under the one that they were published with.
        """
        blocks: list[int] = []
        for index in range(first, len(tokens) // self.block_tokens):
            add_keys(keys, tokens, index + 1, self.block_tokens, root_key)
            block = self._by_key.get(keys[index])
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_revived(self, blocks: Sequence[int]) -> int:
        """How many of `blocks`, a prefix, count like fresh blocks in admission: all from the first one that
        is only retained.

        It may be gone before they are shared, and then those after it are not found, even if sequences hold
        them.
        """
        unheld = np.flatnonzero(self._references[list(blocks)] == 0)
        return len(blocks) - int(unheld[0]) if len(unheld) else 0

    def num_held_once(self, blocks: Sequence[int]) -> int:
        """How many of them one sequence alone holds."""
        return int(np.count_nonzero(self._references[list(blocks)] == 1))

    def num_shared(self, rows: Sequence[Ids]) -> Ids:
        """[rows] how many blocks of each of `rows` are held by another
        sequence as well. Each row has at least one block.
        """
        ends = np.cumsum([len(row) for row in rows])
        is_shared = np.take(self._references > 1, np.concatenate(rows)).view(np.uint8)
        shared: Ids = np.add.reduceat(is_shared, np.concatenate([[0], ends[:-1]]), dtype=np.int32)
        return shared

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._retained.pop(block, None)
        self._references[list(blocks)] += 1

    def lend(self, blocks: Ids) -> None:
        """A copy reads `blocks` [n], each of them once, which sequences hold: none of them is free before
        `give_back`.
        """
        self._references[blocks] += 1
        self._lent[blocks] += 1
        self._num_lent += len(blocks)

    def give_back(self, blocks: Ids) -> None:
        """A copy has read `blocks` [n], which it was lent."""
        assert (self._lent[blocks] > 0).all(), "blocks are given back that were not lent"
        self._lent[blocks] -= 1
        self._num_lent -= len(blocks)
        self.drop(blocks)

    def borrow(self, count: int, on_revoke: Callable[[], None]) -> Ids:
        """`count` blocks, first free ones, then the oldest retained ones, until `return_borrowed`; nothing is
        borrowed yet: there is one borrower. All are taken back at once when a sequence needs one, after
        `on_revoke`, which must see to it that they are not touched any more.
        """
        assert not self._borrowed, "blocks are borrowed twice"
        assert count <= self.num_borrowable, "blocks are borrowed that sequences hold"
        self._borrowed = [self._free.pop() if self._free else self._evict_oldest() for _ in range(count)]
        self._on_revoke = on_revoke
        return np.array(self._borrowed, np.int32)

    def return_borrowed(self) -> None:
        """Nothing happens if they were taken back."""
        self._free.extend(self._borrowed)
        self._borrowed = []

    def allocate(self, count: int) -> list[int]:
        """`count` fresh blocks: first free ones, then the oldest retained ones, then those that are borrowed.
        The caller has checked `num_available`.
        """
        return [self._allocate_one() for _ in range(count)]

    def publish(self, block: int, key: bytes) -> None:
        """Records that `block` is full and holds the KV of the prefix `key`. Of
        blocks with the same key the first one is found.
        """
        if key not in self._by_key and self._keys[block] is None:
            self._by_key[key] = block
            self._keys[block] = key

    def forget(self, blocks: Ids) -> None:
        """`blocks` [n], which sequences hold, can't be found any more."""
        for block in blocks.tolist():
            key, self._keys[block] = self._keys[block], None
            if key is not None:
                del self._by_key[key]

    def drop(self, blocks: Sequence[int] | Ids) -> None:
        """Gives references back, the last block first: when memory is
        needed, a prefix is shortened from its end.
        """
        last_first = np.asarray(blocks, np.int64)[::-1]
        self._references[last_first] -= 1
        for block in last_first[self._references[last_first] == 0].tolist():
            if self._keys[block] is None:
                self._free.append(block)
            else:
                self._retained[block] = None

    def check_integrity(self, holders: Iterable[Sequence[int] | Ids]) -> None:
        """Checks every count against the block rows of `holders`, which do not include copies. Raises
        AssertionError.
        """
        held = np.array([block for row in holders for block in row], np.int64)
        counts = np.bincount(held, minlength=self.num_blocks) + self._lent
        assert np.array_equal(counts, self._references), "block references differ from what the slots hold"
        idle = sorted([*self._free, *self._retained, *self._borrowed])
        assert idle == [block for block in range(self.num_blocks) if counts[block] == 0], (
            "free and retained blocks are off"
        )
        keyless = [*self._free, *self._borrowed]
        assert all(self._keys[block] is None for block in keyless), "a free block still has a key"
        assert all(self._keys[block] == key for key, block in self._by_key.items()), (
            "a key leads to another block"
        )

    def _allocate_one(self) -> int:
        if not self._free and not self._retained:
            self._on_revoke()
            self.return_borrowed()
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


def add_keys(
    keys: list[bytes], tokens: Ids, count: int, block_tokens: int, root_key: bytes = ROOT_KEY
) -> None:
    """Adds to `keys` those of the leading blocks of `tokens` that are missing of the first `count`.
    `root_key` stands before the first block: what else than the tokens decides what blocks hold.
    """
    for index in range(len(keys), count):
        prefix = keys[-1] if keys else root_key
        keys.append(block_key(prefix, tokens[index * block_tokens : (index + 1) * block_tokens]))


def block_key(prefix: bytes, tokens: Ids) -> bytes:
    """Key of the block that holds `tokens` [block_tokens] after `prefix`: a
    128-bit digest of all tokens up to its end.
    """
    return hashlib.blake2b(prefix + tokens.astype(np.int32).tobytes(), digest_size=16).digest()
