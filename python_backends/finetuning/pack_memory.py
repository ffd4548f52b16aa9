"""The memory of a pack: KV blocks that no request holds are borrowed for its keys, values and activations,
and taken back when a request needs them. Without a server, a pack has memory of its own.

What gives way when memory is short: prefixes that are kept for later prompts, then the pack, whose mini-batch
begins again, then the job, which waits. Owned by the trainer of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from python_backends.engine.protocol import AdapterInTraining, PackInTraining
from python_backends.finetuning.jobs import JobError
from python_backends.finetuning.pruning import plans
from python_backends.nouns.request import Ids
from python_backends.nouns.training import Keep, LayerPlan, Pack

# of the KV blocks without a request: what a pack may borrow. The others are for requests that come while it
# is computed: one that takes a block of the pack makes it begin again
MEMORY_SHARE = 0.5
# whose activations are kept at a time, if a tile is not larger; a longer example is computed by itself. A
# pack of several tiles reads the weights as often as a larger one, and needs less memory
PACK_TOKENS = 1024
MOST_REVOCATIONS = 3  # then packs have half as many tokens
LEAST_TOKENS = 16  # of a pack

Plans = tuple[LayerPlan, ...]


class Pool(Protocol):
    """The KV blocks of a server (`scheduling/state/blocks.py`)."""

    @property
    def num_borrowable(self) -> int: ...

    num_blocks: int

    def borrow(self, count: int, on_revoke: Callable[[], None]) -> Ids: ...
    def return_borrowed(self) -> None: ...


class RevokedError(Exception):
    """The mini-batch can't go on as it is: the blocks of its pack were taken back, or it is not wanted."""


class PackMemory:
    def __init__(
        self,
        adapter: AdapterInTraining,
        pool: Pool | None = None,
        pack_tokens: int = 0,
        keeps: Sequence[Keep] = tuple(Keep),
    ) -> None:
        """`pool`: None without a server. `pack_tokens`: of a pack at most; 0: PACK_TOKENS, or a whole tile.
        `keeps`: what may be kept of a layer, the most first.
        """
        self._adapter, self._pool = adapter, pool
        self._plans: list[Plans] = [plans(adapter.facts, adapter.targets, keep) for keep in keeps]
        self.pack_tokens = pack_tokens or max(PACK_TOKENS, adapter.tile_tokens)
        self._num_revocations = 0
        self._is_revoked = False

    def plans_for(self, packs: Sequence[Pack]) -> Plans | None:
        """What to keep of each of `packs`: the most that fits into the share of blocks without a request.
        None if nothing does now.
        """
        if self._pool is None:
            return self._plans[0]
        most = MEMORY_SHARE * self._pool.num_borrowable
        return next((chosen for chosen in self._plans if self._needed(packs, chosen) <= most), None)

    def shrink_if_too_large(self, packs: Sequence[Pack]) -> bool:
        """Halves the size of packs that would not fit even if no request ran. JobError where the largest has
        one example only.
        """
        assert self._pool is not None, "without a server there is always a plan"
        needed = self._needed(packs, self._plans[-1])
        if needed <= MEMORY_SHARE * self._pool.num_blocks:
            return False
        largest = max(packs, key=lambda pack: len(pack.tokens))
        if len(largest.bounds) == 2:
            raise self._too_large(largest, needed, "an example", self._pool)
        self.pack_tokens = max(LEAST_TOKENS, min(self.pack_tokens, len(largest.tokens)) // 2)
        return True

    def check_fits(self, pack: Pack, name: str) -> None:
        """JobError if a pack of one example would not fit even if no request ran."""
        needed = self._needed([pack], self._plans[-1])
        if self._pool is not None and needed > MEMORY_SHARE * self._pool.num_blocks:
            raise self._too_large(pack, needed, name, self._pool)

    def begin(self, pack: Pack, chosen: Plans, num_labels: int) -> PackInTraining | None:
        """None: requests hold too many blocks now."""
        borrowed = None
        if self._pool is not None and (count := self._adapter.num_blocks(pack, chosen)):
            if count > self._pool.num_borrowable:
                return None
            borrowed = self._pool.borrow(count, self._revoke)
        return self._adapter.begin(pack, num_labels, borrowed)

    def end(self) -> None:
        """Of the pack, which is not computed any more. Its blocks go back, if they were not taken back."""
        if self._pool is not None:
            self._pool.return_borrowed()

    def check(self) -> None:
        """Raises RevokedError if the blocks were taken back since the pack has begun."""
        if not self._is_revoked:
            return
        self._is_revoked = False
        self._num_revocations += 1
        if self._num_revocations % MOST_REVOCATIONS == 0:
            self.pack_tokens = max(LEAST_TOKENS, self.pack_tokens // 2)
        raise RevokedError

    def _revoke(self) -> None:
        """Called by the pool, which takes the blocks back now: `check` is asked before they are touched."""
        self._is_revoked = True

    @staticmethod
    def _too_large(pack: Pack, needed: int, name: str, pool: Pool) -> JobError:
        return JobError(
            f"{name} of {len(pack.tokens)} tokens takes {needed} KV blocks, training may have"
            f" {MEMORY_SHARE * pool.num_blocks:.0f}, half of all (engine.kv_blocks, engine.kv_memory_gib)"
        )

    def _needed(self, packs: Sequence[Pack], chosen: Plans) -> int:
        """Packs are computed one after the other."""
        return max(self._adapter.num_blocks(pack, chosen) for pack in packs)
