"""Why requests go to another instance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from python_backends.instance.build import build_copier
from python_backends.nouns import instance_load
from python_backends.scheduling.handover import Handover, RefusedMove
from python_backends.scheduling.state.sequence import Sequence
from python_backends.settings import ClusterSettings, ModelSettings, Settings
from tests.support.moving import SIZE, STEP_S, World, model, order_to_move
from tests.support.scheduling import request, write_vocabulary
from tests.support.toy_engine import ToyEngine

__all__ = ["model"]  # a fixture


def reasons(world: World) -> Counter[str]:
    """Of the moves that were done."""
    counts: Counter[str] = Counter()
    for (name, labels), count in world.front.metrics.counters.items():
        if name == "gapless_migrations_total" and dict(labels)["outcome"] == "done":
            counts[dict(labels)["reason"]] += int(count)
    return counts


@pytest.mark.parametrize("policy", ["ours", "llumnix"])
def test_a_request_that_waits_for_memory_starts_elsewhere_within_a_second(policy: str) -> None:
    """One instance has a free slot and no memory, the other one has both."""
    world = World(policy=policy, blocks=50, balance_every_s=0.5)
    world.front.cluster.scaling.drain(1)
    for number in range(1, 4):
        world.ask(request(number, [number] * 10, max_tokens=89, min_tokens=89))
    world.until(lambda: world.num_tokens(2) > 2)
    assert world.num_tokens(3) == 0
    assert world.hosts[0].scheduler.slots.num_free == 1
    began_s = world.network.now_s
    world.front.cluster.scaling.restore(1)
    world.until(lambda: world.where(3) == 1)
    assert world.network.now_s - began_s <= 1.0
    assert reasons(world) == {"defragment": 1}
    world.check_all()


def test_one_that_was_just_sent_here_holds_up_no_other_that_waits() -> None:
    world = World(policy="ours", blocks=50, move="off", balance_every_s=0.5)
    world.front.cluster.scaling.drain(1)
    for number in range(1, 5):
        world.ask(request(number, [number] * 10, max_tokens=89, min_tokens=89))
    world.until(lambda: world.num_tokens(2) > 2)
    world.front.cluster._balancer._sent_s[3] = world.network.now_s
    world.front.cluster.scaling.restore(1)
    world.until(lambda: world.where(4) == 1)
    assert world.where(3) == 0
    world.check_all()


@pytest.mark.parametrize("priority", [0, -1, -(2**31)])
def test_an_ordinary_request_leaves_the_instance_of_one_with_high_priority(
    monkeypatch: pytest.MonkeyPatch, priority: int
) -> None:
    """Under the policy that keeps headroom for it. That one does not move itself, and is never evicted."""
    monkeypatch.setattr(instance_load, "HEADROOM_TOKENS", 40)
    world = World(policy="llumnix")
    world.front.cluster.scaling.drain(1)
    world.ask(request(1, [1] * 10, priority=priority, max_tokens=80, min_tokens=80))
    world.ask(request(2, [2] * 10, priority=1, max_tokens=80, min_tokens=80))
    world.until(lambda: world.num_tokens(2) > 2)
    world.front.cluster.scaling.restore(1)
    world.until(lambda: world.where(1) == 1)
    assert world.where(2) == 0
    world.check_all()
    assert reasons(world) == {"priority": 1}
    assert [host.scheduler.num_evictions for host in world.hosts] == [0, 0]


def test_a_single_instance_copies_nothing_and_says_nothing_of_moves(tmp_path: Path) -> None:
    checkpoint = write_vocabulary(tmp_path)
    settings = Settings(model=ModelSettings(str(checkpoint)), cluster=ClusterSettings(instances=1))
    assert build_copier(settings, ToyEngine(settings), tmp_path, 0) is None
    world = World(1, "ours")
    for number in range(1, 6):
        world.ask(request(number, [number] * 10, max_tokens=40, min_tokens=40))
    world.check_all()
    assert not world.front.outcomes()
    assert world.hosts[0].copier.num_sent_bytes == 0


def with_another_engine(world: World, **differs: str) -> None:
    """Instance 1 is started again, with an engine that differs in this."""
    world.kill(1)
    engine = world.hosts[1].engine
    if "kv_format" in differs:
        engine.kv_format = differs["kv_format"]
    else:
        engine.limits = engine.limits.changed(**differs)
    world.front.lose(1)
    world.turn()
    world.turn()


def test_a_request_does_not_move_to_another_model() -> None:
    """As while weights are replaced in one instance after the other: a drained one is empty when its requests
    have ended.
    """
    world = World()
    with_another_engine(world, fingerprint="other weights")
    for number in (1, 2):
        world.ask(request(number, [number] * 5, max_tokens=40, min_tokens=40))
    world.until(lambda: world.num_tokens(2) > 2)
    there = world.where(2)
    world.front.cluster.scaling.drain(there)
    for _ in range(20):
        world.turn()
        assert world.where(2) == there
    world.check_all()
    assert not world.front.outcomes()


def test_an_evicted_request_of_a_drained_instance_waits_for_its_model_and_holds_up_no_other() -> None:
    world = World()
    with_another_engine(world, fingerprint="other weights")
    world.front.cluster.scaling.drain(1)
    for number in range(1, 4):
        world.ask(request(number, [number] * 5, max_tokens=90, min_tokens=90))
    world.until(lambda: world.num_tokens(3) > 2)
    world.ask(request(4, [4] * 5, max_tokens=20, min_tokens=20))
    world.turn()
    scheduler = world.hosts[0].scheduler
    sequence = scheduler.find(1)
    assert sequence is not None
    scheduler._evict(sequence)
    world.hosts[0].publish(scheduler.take_evicted())
    world.front.cluster.scaling.restore(1)
    world.front.cluster.scaling.drain(0)
    world.tick(2 * STEP_S)
    world.front.turn()
    assert world.where(4) == 1
    for _ in range(20):
        world.turn()
        assert {world.where(number) for number in (1, 2, 3)} == {0}
    world.check_all()
    assert reasons(world) == {"drain": 1}


def test_what_does_not_fit_into_the_freest_instance_leaves_a_drained_one_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Instance 1 has more memory for each of its requests, instance 2 has more in all."""
    world, places = World(3, blocks=40, move="recompute"), {1: 0, 2: 1, 3: 2, 4: 2}
    monkeypatch.setattr(world.front.router, "choose", lambda stream, _: places[stream.request_id])
    for number, count in ((2, 70), (3, 3), (4, 3), (1, 60)):
        world.ask(request(number, [number] * count, max_tokens=25, min_tokens=25))
    world.until(lambda: world.num_tokens(1) > 2)
    world.front.cluster.scaling.drain(0)
    assert max(world.front.router.takers, key=world.front.router.freeness_of).number == 1
    world.tick(2 * STEP_S)
    world.front.turn()
    assert world.where(1) == 2
    world.check_all()


def test_a_request_that_is_refused_each_time_keeps_no_other_from_leaving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where its adapter can't be loaded there."""
    reserve = Handover.reserve

    def refuse_one(handover: Handover, sequence: Sequence) -> None:
        if sequence.request_id == 1:
            raise RefusedMove("adapter")
        reserve(handover, sequence)

    monkeypatch.setattr(Handover, "reserve", refuse_one)
    monkeypatch.setattr("python_backends.cluster.balancer.DRAINING_MOVES", 1)
    world = World()
    world.front.cluster.scaling.drain(1)
    for number, count in ((1, 3), (2, 9)):
        world.ask(request(number, [number] * count, max_tokens=80, min_tokens=80))
    world.until(lambda: min(world.num_tokens(1), world.num_tokens(2)) > 2)
    world.front.cluster.scaling.restore(1)
    world.front.cluster.scaling.drain(0)
    world.until(lambda: world.front.outcomes()["refused"] == 1)
    world.tick(1.1)
    world.until(lambda: world.where(2) == 1)
    monkeypatch.undo()
    world.check_all()


def test_a_request_is_computed_again_where_blocks_are_written_in_another_way() -> None:
    world = World()
    with_another_engine(world, kv_format="toy of another size")
    world.ask(request(1, [5, 8, 9], max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(1) > 8)
    there = 1 - world.where(1)
    assert order_to_move(world, 1, there)["done"] == (
        f"request 1 was submitted to instance {there}, which computes its tokens again"
    )
    world.check_all()
    assert all(host.copier.num_sent_bytes == 0 for host in world.hosts)


def test_kept_prefixes_are_no_load_and_give_way_to_a_request_that_moves_there() -> None:
    """Requests that have ended leave their blocks for later prompts that begin alike, until they fill the
    memory.
    """
    world = World(policy="llumnix", balance_every_s=1000.0)
    world.front.cluster.scaling.drain(0)
    for number in range(1, 6):
        world.ask(request(number, [number] * 40, max_tokens=40, min_tokens=40))
    world.until(lambda: len(world.front.answers) == 5, 600)
    world.turn()
    blocks = world.hosts[1].scheduler.blocks
    assert blocks.num_retained > blocks.num_blocks - 5
    world.front.cluster.scaling.restore(0)
    assert world.front.router.freeness(1) == world.front.router.freeness(0) == blocks.num_blocks * SIZE
    world.front.cluster.scaling.drain(1)
    world.ask(request(6, [6] * 40, max_tokens=40, min_tokens=40))
    world.until(lambda: world.num_tokens(6) > 8)
    world.front.cluster.scaling.restore(1)
    world.move(6, 1)
    world.until(lambda: world.where(6) == 1)
    world.check_all()
    assert world.front.outcomes() == {"done": 1}
