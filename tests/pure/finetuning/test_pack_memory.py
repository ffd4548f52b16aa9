"""A pack borrows blocks, and gives way when they are taken back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from python_backends.finetuning.jobs import JobError
from python_backends.finetuning.pack_memory import PackMemory, RevokedError
from python_backends.nouns.training import LayerFacts, Pack
from python_backends.scheduling.state.blocks import BlockPool


class FakeAdapter:
    """A block for each token, two if what products gave is kept; notes what it is told."""

    tile_tokens = 256

    def __init__(self) -> None:
        self.facts = (LayerFacts(4, 4, 4, 8),)
        self.targets = {0: frozenset({"qkv", "o", "up", "down"})}
        self.said: list[Any] = []

    def num_blocks(self, pack: Pack, plans: Any) -> int:
        return len(pack.tokens) * (2 if "gate_up" in plans[0].kept else 1)

    def begin(self, pack: Pack, num_labels: int, borrowed: Any) -> str:
        self.said.append(None if borrowed is None else len(borrowed))
        return "a pack"


def pack(*lengths: int) -> Pack:
    bounds = (0, *np.cumsum(lengths).tolist())
    zeros = np.zeros(bounds[-1], np.int32)
    return Pack(zeros, zeros, bounds)


def memory(pool: BlockPool | None, pack_tokens: int = 1024) -> tuple[PackMemory, FakeAdapter]:
    adapter = FakeAdapter()
    return PackMemory(adapter, pool, pack_tokens), adapter  # type: ignore[arg-type]


def test_the_most_is_kept_that_fits_into_the_share_of_the_free_blocks() -> None:
    pool = BlockPool(40, 4)
    packs, (own, _) = [pack(5, 5)], memory(pool)
    rich = own.plans_for(packs)
    assert rich is not None
    assert "gate_up" in rich[0].kept
    held = pool.allocate(10)
    poor = own.plans_for(packs)
    assert poor is not None
    assert "gate_up" not in poor[0].kept
    held += pool.allocate(20)
    assert own.plans_for(packs) is None, "not now"
    assert not own.shrink_if_too_large(packs)
    pool.drop(held)
    assert own.plans_for(packs) == rich


def test_packs_that_never_fit_are_made_smaller_and_an_example_that_never_fits_is_an_error() -> None:
    own, _ = memory(BlockPool(40, 4), pack_tokens=64)
    assert own.shrink_if_too_large([pack(30, 30)])
    assert own.pack_tokens == 30
    with pytest.raises(JobError, match="an example of 30 tokens takes 30 KV blocks"):
        own.shrink_if_too_large([pack(30)])


def test_a_pack_whose_blocks_are_taken_back_touches_them_no_more() -> None:
    pool = BlockPool(40, 4)
    own, adapter = memory(pool)
    chosen = own.plans_for([pack(10)])
    assert chosen is not None
    assert own.begin(pack(10), chosen, 3)
    own.check()
    taken = pool.allocate(20)
    own.check()  # there were others
    taken += pool.allocate(1)
    with pytest.raises(RevokedError):
        own.check()
    own.end()
    assert (adapter.said, pool.num_borrowed) == ([20], 0)
    pool.check_integrity([taken])


def test_packs_that_often_give_way_become_smaller() -> None:
    pool = BlockPool(40, 4)
    own, _ = memory(pool, pack_tokens=100)
    sizes = []
    for _ in range(7):
        chosen = own.plans_for([pack(10)])
        assert chosen is not None
        assert own.begin(pack(10), chosen, 3)
        taken = pool.allocate(40)
        with pytest.raises(RevokedError):
            own.check()
        own.end()
        pool.drop(taken)
        sizes.append(own.pack_tokens)
    assert sizes == [100, 100, 50, 50, 50, 25, 25]


def test_a_pack_waits_for_blocks_between_two_packs() -> None:
    pool = BlockPool(40, 4)
    own, adapter = memory(pool)
    chosen = own.plans_for([pack(10)])
    assert chosen is not None
    held = pool.allocate(30)
    assert not own.begin(pack(10), chosen, 3)
    pool.drop(held)
    assert own.begin(pack(10), chosen, 3)
    own.end()
    assert (adapter.said, pool.num_borrowed, pool.num_borrowable) == ([20], 0, 40)


def test_without_a_server_a_pack_has_its_own_memory() -> None:
    own, adapter = memory(None)
    chosen = own.plans_for([pack(10)])
    assert chosen is not None
    assert "gate_up" in chosen[0].kept
    assert own.begin(pack(10), chosen, 3)
    own.end()
    assert adapter.said == [None]
