"""Why requests go to another instance: where the instances and the scheduler model are turned by hand as in
`test_moves`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from python_backends.engine.toy.engine import ToyEngine
from python_backends.instance.build import build_copier
from python_backends.settings import ClusterSettings, ModelSettings, Settings
from tests.pure import test_moves
from tests.pure.test_moves import World, model
from tests.pure.test_scheduling import request, write_vocabulary

__all__ = ["model"]  # a fixture


def reasons(world: World) -> Counter[str]:
    """Of the moves that were done."""
    counts: Counter[str] = Counter()
    for (name, labels), count in world.front.metrics.counters.items():
        if name == "gapless_migrations_total" and dict(labels)["outcome"] == "done":
            counts[dict(labels)["reason"]] += int(count)
    return counts


@pytest.mark.parametrize("policy", ["ours", "llumnix"])
def test_a_request_that_waits_for_memory_starts_elsewhere_within_a_second(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """One instance has a free slot and no memory, the other one has both."""
    monkeypatch.setattr(test_moves, "BLOCKS", 50)
    world = World(policy=policy, balance_every_s=0.5)
    world.front.cluster.order(frozenset({1}))
    for number in range(1, 4):
        world.ask(request(number, [number] * 70, max_tokens=29, min_tokens=29))
    world.until(lambda: world.num_tokens(2) > 2)
    assert world.num_tokens(3) == 0
    assert world.hosts[0].scheduler.slots.num_free == 1
    began_s = world.network.now_s
    world.front.cluster.order(frozenset())
    world.until(lambda: world.where(3) == 1)
    assert world.network.now_s - began_s <= 1.0
    assert reasons(world) == {"defragment": 1}
    world.check_all()


@pytest.mark.parametrize("policy", ["ours", "llumnix"])
def test_ordinary_requests_leave_the_instance_of_one_with_high_priority(policy: str) -> None:
    """It is never evicted, and does not move itself."""
    world = World(policy=policy, low_tokens=48, priority_headroom_tokens=40)
    world.front.cluster.order(frozenset({1}))
    for number in (1, 2):
        world.ask(request(number, [number] * 10, max_tokens=80, min_tokens=80))
    world.ask(request(3, [3] * 10, priority=1, max_tokens=80, min_tokens=80))
    world.until(lambda: world.num_tokens(3) > 2)
    world.front.cluster.order(frozenset())
    world.until(lambda: {world.where(1), world.where(2)} == {1})
    assert world.where(3) == 0
    world.check_all()
    assert set(reasons(world)) == {"priority"}
    assert [host.scheduler.num_evictions for host in world.hosts] == [0, 0]


def test_a_single_instance_copies_nothing_and_says_nothing_of_moves(tmp_path: Path) -> None:
    checkpoint = write_vocabulary(tmp_path / "toy")
    settings = Settings(model=ModelSettings(str(checkpoint)), cluster=ClusterSettings(instances=1))
    assert build_copier(settings, ToyEngine(settings), tmp_path, 0) is None
    world = World(1, "ours")
    world.front.cluster.order(frozenset())
    for number in range(1, 6):
        world.ask(request(number, [number] * 10, max_tokens=40, min_tokens=40))
    world.check_all()
    assert not world.front.outcomes()
    assert world.hosts[0].copier.num_sent_bytes == 0
